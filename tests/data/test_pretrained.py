"""Tests of pretrained tokenizers, as transformers saves them."""

import json
from pathlib import Path
from typing import Any

import pytest
from support.corpora import BPE, TEXTS, tokenizer_config
from support.refused import refused
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from rope_exp.errors import ConfigError, DataError
from rope_exp.tokenizer import END_OF_TEXT, build_tokenizer, encode, train_bpe


@pytest.fixture(scope="module")
def bpe() -> Tokenizer:
    return train_bpe(BPE, TEXTS)


def build(path: Path | str) -> Any:
    return build_tokenizer(tokenizer_config("pretrained", path=str(path)), [])


def save_as_transformers_does(tokenizer: Tokenizer, folder: Path, **settings: str) -> Path:
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
    settings["tokenizer_class"] = "PreTrainedTokenizerFast"
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def test_a_pretrained_tokenizer_keeps_its_ids(bpe: Tokenizer, tmp_path: Path) -> None:
    folder = save_as_transformers_does(bpe, tmp_path / "mine", eos_token=END_OF_TEXT)
    text = f"naïve {END_OF_TEXT} text"
    tokenizer, end_id = build(folder)
    assert end_id == bpe.token_to_id(END_OF_TEXT)
    assert encode(tokenizer, [text]) == [bpe.encode(text).ids]


def test_a_pretrained_tokenizer_encodes_without_dropout(bpe: Tokenizer, tmp_path: Path) -> None:
    """A text has the same tokens each time, and the stored file asks for no dropout, either."""
    values = json.loads(bpe.to_str())
    values["model"]["dropout"] = 0.3
    random = Tokenizer.from_str(json.dumps(values))
    folder = save_as_transformers_does(random, tmp_path / "random", eos_token=END_OF_TEXT)
    tokenizer, _ = build(folder)
    text = " ".join(TEXTS)
    assert tokenizer.encode(text).ids == bpe.encode(text).ids
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
    with refused("tokenizer.path=", "nowhere: is no folder here, and no", by=ConfigError):
        build(tmp_path / "nowhere")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    words = "tokenizer.path=nobody/nothing: the tokenizer could not be fetched"
    with refused(words, by=DataError):
        build("nobody/nothing")
