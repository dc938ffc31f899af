"""Tests of generated data as a run reads it: rows, targets, hashes and tokenizers."""

import dataclasses
from typing import Any

import numpy as np
import pytest
from support.corpora import BYTES, data_config

from rope_exp.batches import Batch
from rope_exp.compose import run_config
from rope_exp.config import RunConfig
from rope_exp.generated import Generated, open_data
from rope_exp.prepare import Prepared
from rope_exp.rows import spell
from rope_exp.sections import TASKS, DataConfig
from rope_exp.sources import held_out_rows, training_batch
from rope_exp.tasks.addition import Addition
from rope_exp.tasks.spikes import QUERY_S, Spikes
from rope_exp.tokenizer import Tokenizer, load_tokenizer

KINDS = tuple(TASKS)
each_kind = pytest.mark.parametrize("kind", KINDS)


def config_of(kind: str, *overrides: str) -> RunConfig:
    return run_config([f"data={kind}", "train.global_batch_size=4", *overrides])


def data_of(config: RunConfig) -> Generated:
    found = open_data(config.data, config.tokenizer, seq_len=config.train.seq_len)
    assert isinstance(found, Generated)
    return found


def batch_of(kind: str, step: int, *overrides: str) -> Batch:
    config = config_of(kind, *overrides)
    return training_batch(config, data_of(config), step)


def assert_equal(one: Batch, other: Batch) -> None:
    for left, right in zip(one, other, strict=True):
        assert (left is None) == (right is None)
        if left is not None:
            np.testing.assert_array_equal(left, right)


# -- batches ---------------------------------------------------------------------------------------


@each_kind
def test_a_batch_is_a_pure_function_of_seed_and_step(kind: str) -> None:
    whole = batch_of(kind, 3)
    assert_equal(batch_of(kind, 3), whole)
    for other in (batch_of(kind, 2), batch_of(kind, 3, "seed=1")):
        assert not np.array_equal(other.hashed_BS, whole.hashed_BS)
    assert_equal(batch_of(kind, 3, "seed=1", "data.seed=0"), whole)


def test_step_after_step_reads_row_after_row() -> None:
    """Step s reads rows (s - 1) B to s B - 1 of the generator, so no row is repeated.

    The target at a place of an answer is the token that is read at the next place.
    """
    rows = Addition(5).rows("train", range(12))
    batches = [batch_of("addition", step, "seed=5") for step in (1, 2, 3)]
    ids_NT = np.concatenate([batch.ids_BT for batch in batches])
    np.testing.assert_array_equal(ids_NT, rows.ids_NS[:, :-1])
    target_NT = np.concatenate([batch.target_BP for batch in batches])
    np.testing.assert_array_equal(target_NT, np.where(rows.mask_NT, rows.ids_NS[:, 1:], -1))
    assert sum(batch.num_targets for batch in batches) == rows.mask_NT.sum()


@each_kind
def test_held_out_rows_are_those_of_every_run(kind: str) -> None:
    """They do not depend on the seeds, and the first batch of training has none of them."""
    config = config_of(kind, "train.eval_sequences=3")
    held_out = held_out_rows(config, data_of(config))
    other = config_of(kind, "train.eval_sequences=3", "seed=7", "data.seed=2")
    assert_equal(held_out_rows(other, data_of(other)), held_out)
    assert len(held_out.ids_BT) == 3

    trained = batch_of(kind, 1, "seed=0")
    assert not (trained.ids_BT[:, None] == held_out.ids_BT).all(axis=-1).any()


# -- targets ---------------------------------------------------------------------------------------


def test_the_hash_covers_tokens_and_mask() -> None:
    batch = batch_of("addition", 1)
    ids_BS, mask_BT = np.split(batch.hashed_BS, [257], axis=1)
    np.testing.assert_array_equal(ids_BS[:, :-1], batch.ids_BT)
    np.testing.assert_array_equal(mask_BT, batch.target_BP >= 0)
    np.testing.assert_array_equal(ids_BS[:, 1:][mask_BT == 1], batch.target_BP[mask_BT == 1])


@pytest.mark.parametrize("period", [1e-4, 0.02])
def test_spikes_stand_at_their_times(period: float) -> None:
    """Positions are radians of the fastest pair, queries last, padding a document of its own."""
    batch = batch_of("spikes", 1, f"data.period={period}")
    rows = Spikes(0).rows("train", range(4))
    assert batch.position_BT is not None
    np.testing.assert_allclose(batch.position_BT * period / (2 * np.pi), rows.times_NT)
    np.testing.assert_array_equal(batch.place_BP, [range(240, 256)] * 4)
    np.testing.assert_array_equal(batch.document_BT, rows.is_pad_NT)
    np.testing.assert_array_equal(batch.target_BP, rows.latent_NQD)
    assert batch.num_targets == 4 * 16
    assert batch.hashed_BS.max() < 2**32
    np.testing.assert_allclose(batch.hashed_BS[:, -16:] / 1e6, [QUERY_S] * 4, atol=1e-6)


# -- hashes and vocabulary -------------------------------------------------------------------------


@each_kind
def test_the_hash_is_of_what_rows_follow_from(kind: str) -> None:
    """The hash leaves out the seed and the length of rows, in which runs may differ."""
    data = data_of(config_of(kind))
    same = data_of(config_of(kind, "seed=9", "data.seed=4", "train.seq_len=320", "data.name=mine"))
    assert same.data_sha256 == data.data_sha256
    hashes = {data_of(config_of(each)).data_sha256 for each in KINDS}
    assert len(hashes) == len(KINDS)


def test_other_rows_have_another_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = data_of(config_of("addition"))
    before = plain.data_sha256
    assert data_of(config_of("addition", "data.order=reversed")).data_sha256 != before
    monkeypatch.setattr(Addition, "version", 2)
    assert plain.data_sha256 != before


@each_kind
def test_the_config_knows_what_the_generator_makes(kind: str) -> None:
    """The facts are the vocabulary's size, the shortest row, and the first bin of spans."""
    facts = TASKS[kind]
    data = data_of(config_of(kind))
    assert data.vocab_size == facts.vocab_size == config_of(kind).known_vocab_size
    shortest = Generated(DataConfig(kind=kind), facts.least_seq_len)  # type: ignore[arg-type]
    assert shortest.batch(shortest.rows("train", [0])).ids_BT.shape == (1, facts.least_seq_len)

    task = data.task(0)
    if not isinstance(task, Spikes):
        longest = max(task.rows(split, range(9)).span_NT.max() for split in task.splits)
        assert facts.bins[0] <= longest


@pytest.mark.parametrize(
    ("kind", "text"),
    [("addition", "12+907=919;"), ("copy", "ab|ab;"), ("retrieval", "xyK7q?K7")],
)
def test_its_tokenizer_reads_and_writes_its_characters(kind: str, text: str) -> None:
    data = data_of(config_of(kind))
    tokenizer = Tokenizer.from_str(data.tokenizer_json)
    ids = tokenizer.encode(text).ids
    assert spell(ids, data.tokens) == text
    assert tokenizer.decode(ids) == text
    assert tokenizer.get_vocab_size() == data.vocab_size
    with pytest.raises(Exception, match="Missing"):
        tokenizer.encode("é")


def test_units_are_words(tmp_path: Any) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(data_of(config_of("spikes")).tokenizer_json)
    tokenizer = load_tokenizer(path)
    assert tokenizer.encode("unit00 unit15 query pad").ids == [0, 15, 16, 17]


def test_text_is_prepared_as_ever(folder: Any) -> None:
    data = data_config(path=folder)
    found = open_data(data, BYTES, seq_len=16)
    assert isinstance(found, Prepared)
    assert found.num_train_tokens == len(found.tokens["train"])
    assert found.tokenizer_json == found.tokenizer_file.read_text(encoding="utf-8")
    config = dataclasses.replace(run_config(["train.seq_len=16"]), data=data, tokenizer=BYTES)
    assert training_batch(config, found, 1).num_targets == 16 * 16
