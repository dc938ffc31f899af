"""Tests that opening a prepared folder finds damage, and that the error names the remedy."""

import hashlib
import os

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.corpora import BYTES, data_config
from support.refused import refused

from rope_exp.batches import training_ids
from rope_exp.corpora import SIDES
from rope_exp.errors import ConfigError, DataError
from rope_exp.files import json_sha256
from rope_exp.prepare import BLOCK_BYTES, Prepared, _digests, prepare, token_dtype
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


@pytest.mark.parametrize("name", NAMES)
@given(share=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
@settings(max_examples=30, derandomize=True, suppress_health_check=list(HealthCheck))
def test_one_flipped_bit_is_found(whole: Whole, name: str, share: float, bit: int) -> None:
    data, prepared = whole
    path = prepared.folder / name
    content = path.read_bytes()
    place = int(share * len(content))
    path.write_bytes(content[:place] + bytes([content[place] ^ 1 << bit]) + content[place + 1 :])
    try:
        found = prepare(data, BYTES)
    except DataError as error:
        assert str(error).startswith(f"{prepared.folder} is damaged: ")
        assert str(error).endswith("; remove it and prepare again")
        assert "\n" not in str(error)
    else:
        # The bit was in white space of meta.json.
        assert name == "meta.json"
        assert found == prepared
    finally:
        path.write_bytes(content)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("harm", ["cut", "empty", "missing"])
def test_a_file_cut_or_gone_is_found(whole: Whole, name: str, harm: str) -> None:
    data, prepared = whole
    path = prepared.folder / name
    content = path.read_bytes()
    if harm == "missing":
        path.unlink()
    else:
        os.truncate(path, len(content) // 2 if harm == "cut" else 0)
    try:
        with refused(f"{prepared.folder} is damaged: ", "; remove it and", by=DataError):
            prepare(data, BYTES)
    finally:
        path.write_bytes(content)


def test_a_folder_is_hashed_once_a_process(whole: Whole) -> None:
    data, _ = whole
    prepare(data, BYTES)
    before = _digests.cache_info().misses
    prepare(data, BYTES)
    assert _digests.cache_info().misses == before


def test_batches_of_the_file_are_those_of_the_array(whole: Whole) -> None:
    _, prepared = whole
    array = np.fromfile(prepared.folder / "train.bin", "<u2")
    for samples in (range(5), range(30, 35), range(495, 500)):
        from_file = training_ids(prepared.tokens["train"], 3, samples, 700)
        np.testing.assert_array_equal(from_file, training_ids(array, 3, samples, 700))


def test_ids_are_as_wide_as_the_vocabulary_asks() -> None:
    assert token_dtype(257) == np.uint16
    assert token_dtype(65536) == np.uint16
    assert token_dtype(65537) == np.uint32
    assert token_dtype(2**32) == np.uint32
    with refused("tokenizer.vocab_size", "2^32", by=ConfigError):
        token_dtype(2**32 + 1)
