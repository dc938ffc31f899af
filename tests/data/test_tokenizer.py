"""Tests of tokenizers: round trips, BPE training, and pretrained ones."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.corpora import start_python, tokenizer_config
from support.refused import refused
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from rope_exp.errors import ConfigError, DataError
from rope_exp.tokenizer import (
    END_OF_TEXT,
    build_tokenizer,
    byte_tokenizer,
    load_tokenizer,
    pieces,
    train_bpe,
    vocab_size,
)

TEXTS = [
    Path(json.__file__).read_text(),
    Path(subprocess.__file__).read_text(),
    "naïve café, 日本語 and 😀\n" * 50,
]
AWKWARD = st.text() | st.text(alphabet=" \n\t\r\x0b\x1c\x85\xa0\u3000a1'.s<|>é日", max_size=60)
BPE = tokenizer_config("bpe", vocab_size=600, train_bytes=200_000)


@pytest.fixture(scope="module")
def bpe() -> Tokenizer:
    return train_bpe(BPE, TEXTS)


def encode(tokenizer: Tokenizer, text: str) -> Any:
    return tokenizer.encode(text, add_special_tokens=False).ids


@given(text=AWKWARD)
def test_decoding_what_was_encoded_gives_any_text_back(bpe: Tokenizer, text: str) -> None:
    """The ids of the byte tokenizer are the bytes of UTF-8, and one more token ends a text."""
    assert bpe.decode(encode(bpe, text)) == text
    tokenizer = byte_tokenizer()
    assert encode(tokenizer, text) == list(text.encode())
    assert tokenizer.decode(list(text.encode())) == text
    assert (vocab_size(tokenizer), tokenizer.token_to_id(END_OF_TEXT)) == (257, 256)


@given(text=AWKWARD, limit=st.integers(1, 20))
def test_a_document_encodes_in_pieces_to_what_it_does_at_once(
    bpe: Tokenizer, text: str, limit: int
) -> None:
    parts = list(pieces(text, limit))
    assert "".join(parts) == text
    assert [id_ for part in parts for id_ in encode(bpe, part)] == encode(bpe, text)


def test_the_text_of_a_special_token_stays_text(bpe: Tokenizer, tmp_path: Path) -> None:
    text = f"before {END_OF_TEXT} after{END_OF_TEXT}"
    for tokenizer in (bpe, byte_tokenizer()):
        tokenizer.save(str(tmp_path / "tokenizer.json"))
        for one in (tokenizer, load_tokenizer(tmp_path / "tokenizer.json")):
            assert one.token_to_id(END_OF_TEXT) not in encode(one, text)
            assert one.decode(encode(one, text)) == text


CHILD = """
import json, sys
from rope_exp.tokenizer import train_bpe
from support.corpora import tokenizer_config
config = tokenizer_config("bpe", vocab_size=600, train_bytes=200_000)
print(train_bpe(config, json.loads(sys.argv[1])).to_str(), end="")
"""


def test_training_twice_gives_the_same_bytes(
    bpe: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second training runs in a process with another hash seed."""
    monkeypatch.setenv("PYTHONHASHSEED", "7")
    stdout, stderr = start_python(CHILD, TEXTS).communicate()
    assert bpe.to_str() == stdout, stderr


def test_a_vocabulary_out_of_reach_is_refused() -> None:
    config = tokenizer_config("bpe", vocab_size=5000, train_bytes=10_000)
    words = ("tokenizer.vocab_size=5000: the corpus yields only 2", " tokens; choose")
    with refused(*words, by=ConfigError):
        train_bpe(config, ["hello world, hello there"])


def test_a_file_that_is_no_tokenizer_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text('{"model": ')
    with refused(f"{path} cannot be read as a tokenizer: ", by=DataError):
        load_tokenizer(path)


# -- pretrained ------------------------------------------------------------------------------------


def build(path: Path | str) -> Any:
    return build_tokenizer(tokenizer_config("pretrained", path=str(path)), [])


def save_as_transformers_does(tokenizer: Tokenizer, folder: Path, **settings: str) -> Path:
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
    settings["tokenizer_class"] = "PreTrainedTokenizerFast"
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def test_a_pretrained_tokenizer_keeps_its_ids(bpe: Tokenizer, tmp_path: Path) -> None:
    """A text has the same tokens each time: the stored file asks for no dropout."""
    values = json.loads(bpe.to_str())
    values["model"]["dropout"] = 0.3
    random = Tokenizer.from_str(json.dumps(values))
    folder = save_as_transformers_does(random, tmp_path / "random", eos_token=END_OF_TEXT)
    tokenizer, end_id = build(folder)
    assert end_id == bpe.token_to_id(END_OF_TEXT)
    text = " ".join(TEXTS) + f"naïve {END_OF_TEXT} text"
    assert encode(tokenizer, text) == bpe.encode(text).ids
    assert json.loads(tokenizer.to_str())["model"]["dropout"] is None


def test_a_pretrained_tokenizer_that_cannot_be_used_is_refused(
    bpe: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A word-level model finds "</s>" in its vocabulary in spite of encode_special_tokens."""
    with refused("tokenizer.path=", "nowhere: cannot be read", by=ConfigError):
        build(tmp_path / "nowhere")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with refused("tokenizer.path=nobody/nothing: the hub did not give it", by=DataError):
        build("nobody/nothing")

    folder = save_as_transformers_does(bpe, tmp_path / "endless")
    with refused("tokenizer.path=", "endless: has no end-of-text token", by=ConfigError):
        build(folder)

    words = Tokenizer(models.WordLevel({"</s>": 0, "a": 1, "[UNK]": 2}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    words.decoder = decoders.Fuse()
    words.add_special_tokens(["</s>"])
    folder = save_as_transformers_does(words, tmp_path / "words", eos_token="</s>")
    with refused("reads the text '</s>' as a special token", by=ConfigError):
        build(folder)
