"""Text to token ids."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.configs import REPOSITORY
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from rope_exp.config.sections import TokenizerConfig
from rope_exp.data.tokenizer import (
    END_OF_TEXT,
    PIECE_CHARS,
    build_tokenizer,
    byte_tokenizer,
    encode,
    load_tokenizer,
    pieces,
    token_dtype,
    train_bpe,
    vocab_size,
)
from rope_exp.system.errors import ConfigError, DataError

TEXTS = [
    Path(json.__file__).read_text(),
    Path(subprocess.__file__).read_text(),
    "naïve café, 日本語 and 😀\n" * 50,
]
BPE = TokenizerConfig("bpe", "bpe", 600, 200_000, None, None)


def pretrained(path: Path | str) -> TokenizerConfig:
    return TokenizerConfig("pretrained", "pretrained", None, None, str(path), None)


@pytest.fixture(scope="module")
def bpe() -> Tokenizer:
    return train_bpe(BPE, TEXTS)


@pytest.fixture(scope="module")
def both(bpe) -> list[Tokenizer]:
    return [bpe, byte_tokenizer()]


awkward = st.text() | st.text(alphabet=" \n\t\r\x0b\x1c\x85\xa0\u3000a1'.s<|>é日", max_size=60)


@given(text=awkward)
def test_decoding_what_was_encoded_gives_any_text_back(both, text):
    for tokenizer in both:
        [ids] = encode(tokenizer, [text])
        assert tokenizer.decode(ids.tolist()) == text


@given(text=awkward)
def test_byte_ids_are_the_bytes_of_utf_8(text):
    [ids] = encode(byte_tokenizer(), [text])
    assert ids.tolist() == list(text.encode())


def test_the_byte_vocabulary_is_256_bytes_and_an_end():
    tokenizer = byte_tokenizer()
    assert vocab_size(tokenizer) == 257
    assert tokenizer.token_to_id(END_OF_TEXT) == 256


@given(text=awkward, limit=st.integers(1, 20))
def test_a_long_document_encodes_in_pieces_to_what_it_does_at_once(bpe, text, limit):
    parts = list(pieces(text, limit))
    assert "".join(parts) == text
    assert [id_ for part in parts for id_ in bpe.encode(part).ids] == bpe.encode(text).ids


def test_documents_longer_than_a_piece_agree_with_the_plain_library(bpe):
    texts = ["", "a", TEXTS[1] * 5, "x" * (PIECE_CHARS * 2), "日" * 100]
    assert len(texts[2]) > 3 * PIECE_CHARS
    assert [ids.tolist() for ids in encode(bpe, texts)] == [bpe.encode(text).ids for text in texts]


def test_the_text_of_a_special_token_stays_text(both, tmp_path):
    text = f"before {END_OF_TEXT} after{END_OF_TEXT}"
    for tokenizer in both:
        tokenizer.save(str(tmp_path / "tokenizer.json"))
        for one in (tokenizer, load_tokenizer(tmp_path / "tokenizer.json")):
            [ids] = encode(one, [text])
            assert one.token_to_id(END_OF_TEXT) not in ids
            assert one.decode(ids.tolist()) == text


def test_training_twice_gives_the_same_bytes():
    code = "from tests.test_tokens import *; import sys; sys.stdout.write(train_bpe(BPE, TEXTS).to_str())"
    environment = os.environ | {"PYTHONHASHSEED": "7", "PYTHONPATH": str(REPOSITORY)}
    other = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, env=environment
    ).stdout
    assert train_bpe(BPE, TEXTS).to_str().encode() == other


def test_training_reads_no_more_than_it_was_given(bpe):
    read = []

    def texts():
        for number in range(1000):
            read.append(number)
            yield (
                f"document {number} of many different words {number * 7919} {number * 104729}\n"
                * 20
            )

    train_bpe(TokenizerConfig("bpe", "bpe", 270, 20_000, None, None), texts())
    assert len(read) < 30


def test_a_corpus_too_small_for_the_vocabulary_says_how_far_it_reached():
    with pytest.raises(
        ConfigError, match=r"tokenizer\.vocab_size=5000: the corpus yields only 2\d\d tokens"
    ):
        train_bpe(
            TokenizerConfig("bpe", "bpe", 5000, 10_000, None, None), ["hello world, hello there"]
        )


def test_a_vocabulary_that_the_training_text_cannot_reach_is_refused_at_once():
    with pytest.raises(
        ConfigError,
        match=r"tokenizer\.vocab_size=4294967296: cannot be reached with tokenizer\.train_b",
    ):
        train_bpe(TokenizerConfig("bpe", "bpe", 2**32, 10**6, None, None), TEXTS)


def test_ids_are_as_wide_as_the_vocabulary_asks():
    assert token_dtype(257) is np.uint16
    assert token_dtype(65536) is np.uint16
    assert token_dtype(65537) is np.uint32
    assert token_dtype(2**32) is np.uint32
    with pytest.raises(ConfigError, match=r"2\^32"):
        token_dtype(2**32 + 1)


# -- pretrained --------------------------------------------------------------------------------------------------------


def save_as_transformers_does(tokenizer: Tokenizer, folder: Path, **settings: str) -> Path:
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
    settings["tokenizer_class"] = "PreTrainedTokenizerFast"
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def test_a_pretrained_tokenizer_keeps_its_ids_and_this_process_stays_free_of_torch(bpe, tmp_path):
    folder = save_as_transformers_does(bpe, tmp_path / "mine", eos_token=END_OF_TEXT)
    code = (
        "import json, sys\n"
        "from rope_exp.config.run import TokenizerConfig\n"
        "from rope_exp.data.tokenizer import build_tokenizer, encode\n"
        "config = TokenizerConfig('p', 'pretrained', None, None, sys.argv[1], None)\n"
        "tokenizer, end_id = build_tokenizer(config, [])\n"
        "print(json.dumps([end_id, encode(tokenizer, [sys.argv[2]])[0].tolist(), sorted(sys.modules)]))"
    )
    text = f"naïve {END_OF_TEXT} text"
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    child = subprocess.run(
        [sys.executable, "-c", code, str(folder), text],
        check=True,
        capture_output=True,
        env=environment,
        cwd=tmp_path,
    )
    end_id, ids, modules = json.loads(child.stdout)
    assert end_id == bpe.token_to_id(END_OF_TEXT)
    assert ids == bpe.encode(text).ids
    assert not {"torch", "transformers"} & set(modules)


def test_a_pretrained_tokenizer_needs_an_end_of_text(bpe, tmp_path):
    folder = save_as_transformers_does(bpe, tmp_path / "endless")
    with pytest.raises(ConfigError, match=r"tokenizer\.path=.*endless: has no end-of-text token"):
        build_tokenizer(pretrained(folder), [])


def test_a_tokenizer_that_reads_special_tokens_in_text_is_refused(tmp_path):
    # A word-level model finds "</s>" in its vocabulary, whatever the library is told about special tokens.
    tokenizer = Tokenizer(models.WordLevel({"</s>": 0, "a": 1, "[UNK]": 2}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.WhitespaceSplit(), decoders.Fuse()
    tokenizer.add_special_tokens(["</s>"])
    folder = save_as_transformers_does(tokenizer, tmp_path / "words", eos_token="</s>")
    with pytest.raises(ConfigError, match="reads the text '</s>' as a special token"):
        build_tokenizer(pretrained(folder), [])


def test_a_missing_pretrained_folder_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"tokenizer\.path=.*nowhere: there is no such folder"):
        build_tokenizer(pretrained(tmp_path / "nowhere"), [])


def test_a_tokenizer_that_cannot_be_fetched_is_one_sentence(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(
        DataError, match=r"tokenizer\.path=nobody/nothing: the tokenizer could not be fetc"
    ) as caught:
        build_tokenizer(pretrained("nobody/nothing"), [])
    assert "\n" not in str(caught.value)
    assert caught.value.__cause__ is None
