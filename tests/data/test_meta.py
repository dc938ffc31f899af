"""Tests that opening a prepared folder finds damage, and that the error names the remedy."""

import hashlib

import numpy as np
import pytest
from support.corpora import BYTES, data_config
from support.harm import Harm, efforts, harmed, try_harms
from support.refused import refused

from rope_exp.batches import training_ids
from rope_exp.corpora import SIDES
from rope_exp.errors import ConfigError, DataError
from rope_exp.files import json_sha256
from rope_exp.prepare import BLOCK_BYTES, Prepared, prepare, token_dtype
from rope_exp.sections import DataConfig

NAMES = ("train.bin", "validation.bin", "meta.json", "tokenizer.json")

Whole = tuple[DataConfig, Prepared]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    """Return a config and its prepared corpus, which has several blocks per side."""
    folder = tmp_path_factory.mktemp("blocks")
    (folder / "text").mkdir()
    for number in range(40):
        text = "".join(f"{number * place % 977:03x} " for place in range(3000))
        (folder / "text" / f"{number}.txt").write_text(text)
    data = data_config(path=folder / "text", holdout_fraction=0.5, cache_dir=str(folder / "c"))
    prepared = prepare(data, BYTES)
    assert all(2 * len(prepared.tokens[side]) > 4 * BLOCK_BYTES for side in SIDES)
    return data, prepared


def test_the_digest_is_that_of_blocks(whole: Whole) -> None:
    """The records of earlier versions hold this digest, so it must not change."""
    _, prepared = whole
    blocks = []
    for side in SIDES:
        content = (prepared.folder / f"{side}.bin").read_bytes()
        parts = [content[n : n + BLOCK_BYTES] for n in range(0, len(content), BLOCK_BYTES)]
        blocks.append("".join(hashlib.sha256(part).hexdigest() for part in parts))
    tokenizer = hashlib.sha256(prepared.tokenizer_file.read_bytes()).hexdigest()
    assert prepared.data_sha256 == json_sha256([tokenizer, "uint16", *blocks])


@efforts(30, 2000)
@pytest.mark.parametrize("name", NAMES)
def test_a_harmed_file_is_found(whole: Whole, name: str, effort: int) -> None:
    data, prepared = whole
    path = prepared.folder / name
    content = path.read_bytes()

    def check(harm: Harm) -> None:
        path.write_bytes(harmed(content, harm))
        try:
            found = prepare(data, BYTES)
        except DataError as error:
            assert str(error).startswith(f"{prepared.folder} is damaged: ")
            assert str(error).endswith("; remove it and prepare again")
            assert "\n" not in str(error)
        else:
            # The harm was in white space of meta.json.
            assert name == "meta.json"
            assert found == prepared
        finally:
            path.write_bytes(content)

    try_harms(check, effort)


@pytest.mark.parametrize("name", NAMES)
def test_a_missing_file_is_found(whole: Whole, name: str) -> None:
    data, prepared = whole
    path = prepared.folder / name
    path.rename(path.with_suffix(".gone"))
    try:
        with refused(f"{prepared.folder} is damaged: ", "; remove it and", by=DataError):
            prepare(data, BYTES)
    finally:
        path.with_suffix(".gone").rename(path)


def test_batches_of_the_file_are_those_of_the_array(whole: Whole) -> None:
    _, prepared = whole
    array = np.fromfile(prepared.folder / "train.bin", "<u2")
    for samples in (range(5), range(30, 35), range(495, 500)):
        from_file = training_ids(prepared.tokens["train"], 3, samples, 700)
        np.testing.assert_array_equal(from_file, training_ids(array, 3, samples, 700))


def test_ids_are_as_wide_as_the_vocabulary_asks() -> None:
    sizes = (257, 65536, 65537, 2**32)
    assert [token_dtype(size) for size in sizes] == [np.uint16] * 2 + [np.uint32] * 2
    with refused("tokenizer.vocab_size", "2^32", by=ConfigError):
        token_dtype(2**32 + 1)
