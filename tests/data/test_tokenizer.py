"""Tests of tokenizers: round trips, encoding in pieces, BPE training, and pretrained ones."""

import json
import pickle
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.corpora import start_python, tokenizer_config
from support.harm import Harm, efforts, harmed, try_harms
from support.refused import REFUSALS, refused
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from rope_exp.errors import ConfigError, DataError
from rope_exp.tokenizer import (
    END_OF_TEXT,
    build_tokenizer,
    byte_tokenizer,
    encode,
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
BPE = tokenizer_config("bpe", vocab_size=600, train_bytes=200_000)


@pytest.fixture(scope="module")
def bpe() -> Tokenizer:
    return train_bpe(BPE, TEXTS)


@pytest.fixture(scope="module")
def both(bpe: Tokenizer) -> list[Tokenizer]:
    return [bpe, byte_tokenizer()]


awkward = st.text() | st.text(alphabet=" \n\t\r\x0b\x1c\x85\xa0\u3000a1'.s<|>é日", max_size=60)


@given(text=awkward)
def test_decoding_what_was_encoded_gives_any_text_back(both: list[Tokenizer], text: str) -> None:
    for tokenizer in both:
        [ids] = encode(tokenizer, [text])
        assert tokenizer.decode(ids) == text


@given(text=awkward)
def test_byte_ids_are_the_bytes_of_utf_8(text: str) -> None:
    """One more token ends a text."""
    tokenizer = byte_tokenizer()
    assert encode(tokenizer, [text]) == [list(text.encode())]
    assert (vocab_size(tokenizer), tokenizer.token_to_id(END_OF_TEXT)) == (257, 256)


@given(text=awkward, limit=st.integers(1, 20))
def test_a_document_encodes_in_pieces_to_what_it_does_at_once(
    bpe: Tokenizer, text: str, limit: int
) -> None:
    parts = list(pieces(text, limit))
    assert "".join(parts) == text
    ids: list[int] = []
    for part in parts:
        ids += bpe.encode(part).ids
    assert ids == bpe.encode(text).ids


def test_the_text_of_a_special_token_stays_text(both: list[Tokenizer], tmp_path: Path) -> None:
    text = f"before {END_OF_TEXT} after{END_OF_TEXT}"
    for tokenizer in both:
        tokenizer.save(str(tmp_path / "tokenizer.json"))
        for one in (tokenizer, load_tokenizer(tmp_path / "tokenizer.json")):
            [ids] = encode(one, [text])
            assert one.token_to_id(END_OF_TEXT) not in ids
            assert one.decode(ids) == text


CHILD = """
import json, sys
from rope_exp.tokenizer import train_bpe
from support.corpora import tokenizer_config
config = tokenizer_config("bpe", vocab_size=600, train_bytes=200_000)
print(train_bpe(config, json.loads(sys.argv[1])).to_str(), end="")
"""


def test_training_twice_gives_the_same_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second training runs in a process with another hash seed."""
    monkeypatch.setenv("PYTHONHASHSEED", "7")
    stdout, stderr = start_python(CHILD, TEXTS).communicate()
    assert train_bpe(BPE, TEXTS).to_str() == stdout, stderr


@pytest.mark.parametrize(
    ("size", "train_bytes", "words"),
    [
        (5000, 10_000, ("=5000: the corpus yields only 2", " tokens; choose")),
        # No text is read to know that.
        (2**24, 10**6, ("=16777216: cannot be reached with tokenizer.train_bytes=1000000",)),
    ],
)
def test_a_vocabulary_out_of_reach_is_refused(
    size: int, train_bytes: int, words: tuple[str, ...]
) -> None:
    config = tokenizer_config("bpe", vocab_size=size, train_bytes=train_bytes)
    with refused("tokenizer.vocab_size", *words, by=ConfigError):
        train_bpe(config, ["hello world, hello there"])


# -- foreign bytes ---------------------------------------------------------------------------------

SMALL = tokenizer_config("bpe", vocab_size=300, train_bytes=20_000)
WORDS = [f"plain words of number {number}" for number in range(60)]
STORED = train_bpe(SMALL, WORDS).to_str().encode()


@efforts(200, 20_000)
def test_a_harmed_tokenizer_is_read_or_refused(tmp_path: Path, effort: int) -> None:
    path = tmp_path / "tokenizer.json"

    def check(harm: Harm) -> None:
        path.write_bytes(harmed(STORED, harm))
        try:
            encode(load_tokenizer(path), WORDS)
        except REFUSALS as error:
            assert str(path) in str(error)
            assert "\n" not in str(error)

    try_harms(check, effort)


def edited_bpe(**changes: Any) -> bytes:
    values = json.loads(STORED)
    values["model"] |= changes
    return json.dumps(values).encode()


HOSTILE_TOKENIZERS = {
    "no JSON": b"{",
    "a pickle": pickle.dumps([]),
    # This makes the Rust library index out of range.
    "a panic": edited_bpe(continuing_subword_prefix="a" * 100),
    "merges of nothing": edited_bpe(merges=[["no", "where"]]),
}


@pytest.mark.parametrize("case", HOSTILE_TOKENIZERS)
def test_a_hostile_tokenizer_file_is_refused(tmp_path: Path, case: str) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_bytes(HOSTILE_TOKENIZERS[case])
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
    assert encode(tokenizer, [text]) == [bpe.encode(text).ids]
    assert json.loads(tokenizer.to_str())["model"]["dropout"] is None


def test_a_pretrained_tokenizer_needs_an_end_of_text(bpe: Tokenizer, tmp_path: Path) -> None:
    folder = save_as_transformers_does(bpe, tmp_path / "endless")
    with refused("tokenizer.path=", "endless: has no end-of-text token", by=ConfigError):
        build(folder)


def test_one_that_reads_special_tokens_in_text_is_refused(tmp_path: Path) -> None:
    """A word-level model finds "</s>" in its vocabulary in spite of encode_special_tokens."""
    tokenizer = Tokenizer(models.WordLevel({"</s>": 0, "a": 1, "[UNK]": 2}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens(["</s>"])
    folder = save_as_transformers_does(tokenizer, tmp_path / "words", eos_token="</s>")
    with refused("reads the text '</s>' as a special token", by=ConfigError):
        build(folder)


def test_one_that_is_not_there_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with refused("tokenizer.path=", "nowhere: cannot be read", by=ConfigError):
        build(tmp_path / "nowhere")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    words = "tokenizer.path=nobody/nothing: the hub did not give it"
    with refused(words, by=DataError):
        build("nobody/nothing")
