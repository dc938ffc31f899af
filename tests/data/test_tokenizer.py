"""Tests of tokenizers: round trips, BPE training, and pretrained ones."""

import json
import random
import signal
import string
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.corpora import start_python, tokenizer_config
from support.refused import refused
from tokenizers import Tokenizer

from rope_exp import prepare
from rope_exp.errors import EXIT_STOPPED, ConfigError, DataError
from rope_exp.load import load_tokenizer
from rope_exp.prepare import (
    ANYWHERE,
    END_OF_TEXT,
    WORD_BYTES,
    byte_tokenizer,
    cuts_at_spaces,
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
    assert vocab_size(tokenizer) == 257
    assert tokenizer.token_to_id(END_OF_TEXT) == 256


@given(text=AWKWARD, limit=st.integers(1, 20))
def test_a_document_encodes_in_pieces_to_what_it_does_at_once(
    bpe: Tokenizer, text: str, limit: int
) -> None:
    parts = list(pieces(text, limit))
    assert "".join(parts) == text
    assert [id_ for part in parts for id_ in encode(bpe, part)] == encode(bpe, text)


@given(text=AWKWARD, limit=st.integers(1, 20))
def test_bytes_are_the_same_wherever_a_text_is_cut(text: str, limit: int) -> None:
    """So one long word, such as a line of DNA, takes no more memory than words do."""
    tokenizer = byte_tokenizer()
    parts = list(pieces(text, limit, ANYWHERE))
    assert all(len(part) == limit for part in parts[:-1])
    assert len(parts[-1]) <= limit
    assert [id_ for part in parts for id_ in encode(tokenizer, part)] == encode(tokenizer, text)


def test_the_text_of_a_special_token_stays_text(bpe: Tokenizer, tmp_path: Path) -> None:
    text = f"before {END_OF_TEXT} after{END_OF_TEXT}"
    for tokenizer in (bpe, byte_tokenizer()):
        tokenizer.save(str(tmp_path / "tokenizer.json"))
        for one in (tokenizer, load_tokenizer(tmp_path / "tokenizer.json")):
            assert one.token_to_id(END_OF_TEXT) not in encode(one, text)
            assert one.decode(encode(one, text)) == text


CHILD = """
import json, sys
from rope_exp.prepare import train_bpe
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


def test_words_of_ordinary_length_train_the_same_merges(
    bpe: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit is far above the words of prose and code; a word at the limit is still whole."""
    small = tokenizer_config("bpe", vocab_size=264, train_bytes=200_000)
    texts = ["ab" * (WORD_BYTES // 2), "c" * (WORD_BYTES - 1)]
    cut = train_bpe(small, texts).to_str()
    monkeypatch.setattr(prepare, "WORD_BYTES", 1 << 30)
    assert train_bpe(small, texts).to_str() == cut
    assert train_bpe(BPE, TEXTS).to_str() == bpe.to_str()


def test_a_long_word_trains_in_pieces() -> None:
    """Merges do not cross a cut, and the tokenizer itself cuts no word."""
    config = tokenizer_config("bpe", vocab_size=258, train_bytes=200_000)
    text = "a" * WORD_BYTES + "b" * WORD_BYTES
    tokenizer = train_bpe(config, [text])
    assert set(tokenizer.get_vocab()) >= {"aa"}
    assert len(encode(tokenizer, text)) == WORD_BYTES * 3 // 2
    assert tokenizer.decode(encode(tokenizer, text)) == text
    assert cuts_at_spaces(tokenizer)


# A word that is not cut takes minutes.
STOPPED = """
import sys
from rope_exp import prepare, progress
from rope_exp.__main__ import main
prepare.WORD_BYTES = 1 << 30
progress.LINE_SECONDS = 0.2
sys.argv[1:] = ["prepare", "data=files", f"data.path={sys.argv[1][1:-1]}"]
sys.exit(main())
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_the_training_of_a_tokenizer(
    tmp_path: Path, empty_cache: Path, number: signal.Signals
) -> None:
    letters = random.Random(0).choices(string.ascii_letters, k=600_000)
    (tmp_path / "a.txt").write_text("".join(letters))
    child = start_python(STOPPED, str(tmp_path / "a.txt"))
    assert child.stderr is not None
    try:
        assert next(child.stderr) == "data: training the tokenizer\n"
        assert next(child.stderr).startswith("data: training the tokenizer, ")
        child.send_signal(number)
        _, stderr = child.communicate(timeout=20)
    finally:
        child.kill()
    assert child.returncode == EXIT_STOPPED
    assert stderr.splitlines()[-1] == "stopped; no run was in progress"


def test_an_error_of_a_text_ends_the_training() -> None:
    def texts() -> Iterator[str]:
        yield "a text"
        raise ConfigError("data.path", "a.txt", "cannot be read")

    with refused("data.path=a.txt: cannot be read", by=ConfigError):
        train_bpe(BPE, texts())


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
