"""Tests that every file of tasks/ keeps: rows, batches, hashes, specifications and tokenizers."""

import dataclasses
from typing import Any

import numpy as np
import pytest
from support.configs import composed
from support.corpora import spell

from rope_exp.batches import held_out_rows, training_batch
from rope_exp.config import RunConfig
from rope_exp.corpus import Batch, TaskSpec
from rope_exp.costs import known_vocab_size
from rope_exp.decoder import Decoder
from rope_exp.identity import choice_names
from rope_exp.load import load_tokenizer
from rope_exp.prepare import open_data
from rope_exp.tasks._rows import Generated, Rows
from rope_exp.tasks.spikes import PADDING, QUERY_S

KINDS = choice_names("tasks")
each_kind = pytest.mark.parametrize("kind", KINDS)


def config_of(kind: str, *overrides: str) -> RunConfig:
    return composed(f"data={kind}", "train.global_batch_size=4", *overrides)


def data_of(config: RunConfig) -> Generated:
    found = open_data(config.data, config.tokenizer, seq_len=config.train.seq_len)
    assert isinstance(found, Generated)
    return found


def spec_of(config: RunConfig) -> TaskSpec:
    assert config.task is not None
    return config.task


def rows_of(config: RunConfig, split: str, indices: range, seed: int = 0) -> Any:
    """Return rows with the fields of their own task."""
    return data_of(config).rows(split, indices, seed)


def batch_of(kind: str, step: int, *overrides: str) -> Batch:
    config = config_of(kind, *overrides)
    return training_batch(config, data_of(config), step)


def assert_equal(one: Batch, other: Batch) -> None:
    for left, right in zip(one, other, strict=True):
        assert (left is None) == (right is None)
        if left is not None:
            np.testing.assert_array_equal(left, right)


# -- rows ------------------------------------------------------------------------------------------


@each_kind
def test_a_row_is_a_pure_function_of_seed_split_and_number(kind: str) -> None:
    """Neither earlier calls, nor the other rows of a call, nor their order matter."""
    config = config_of(kind)
    data = data_of(config)
    picked = [8, 2, 2, 5]
    hashed = []
    for split in spec_of(config).splits:
        whole = data.rows(split, range(9), 3)
        some = data.rows(split, np.array(picked), 3)
        for name, value in vars(some).items():
            if isinstance(value, np.ndarray):
                np.testing.assert_array_equal(value, getattr(whole, name)[picked])
        hashed += [whole.batch.hashed_BS, data.rows(split, range(9), 4).batch.hashed_BS]
    together = np.concatenate(hashed)
    assert len(np.unique(together, axis=0)) == len(together)


@each_kind
def test_shapes_types_and_ids(kind: str) -> None:
    """The specification holds for the shortest rows: vocabulary, predictions, the first bin."""
    config = config_of(kind)
    task = spec_of(config)
    assert len(task.tokens) == known_vocab_size(config)
    assert len(set(task.tokens)) == len(task.tokens)
    data = open_data(config.data, config.tokenizer, seq_len=task.least_seq_len)
    assert isinstance(data, Generated)
    for split in task.splits:
        rows = data.rows(split, range(9))
        batch = rows.batch
        assert batch.ids_BT.shape == (9, task.least_seq_len)
        assert batch.ids_BT.dtype == np.int64
        assert batch.ids_BT.min() >= 0
        assert batch.ids_BT.max() < data.vocab_size
        assert batch.target_BP.shape[1] == (task.num_answers or task.least_seq_len)
        if isinstance(rows, Rows):
            assert rows.mask_NT.any(axis=1).all()
            np.testing.assert_array_equal(rows.span_NT > 0, rows.mask_NT)
            assert 0 < task.bins[0] <= rows.span_NT.max()
    assert bool(task.span) == (task.num_outputs is None)


GOLDEN_STARTS = {
    "plain": "_______2+62610=62612;9+94718=94727;9611+957=1056",
    "reversed": "_______2+01626=21626;9+81749=72749;1169+759=8650",
    "copy": "____________________ccbdbbbacbbabbacdbccbdcdadcd",
    "retrieval": "eypsneqeyyuroiexcuefjabxsfltlasbhnixxyptsmqafxya",
}


@pytest.mark.parametrize("name", GOLDEN_STARTS)
def test_the_rows_are_those_that_were_published(name: str) -> None:
    """Golden values: with every numpy on every machine, or results could not be compared."""
    words = ["addition", f"data.order={name}"] if name in ("plain", "reversed") else [name]
    config = config_of(*words, *(["train.seq_len=512"] if name == "retrieval" else []))
    (ids_S,) = rows_of(config, "train", range(1), 3).ids_NS
    assert spell(ids_S, spec_of(config).tokens).startswith(GOLDEN_STARTS[name])


# -- batches ---------------------------------------------------------------------------------------


def test_step_after_step_reads_row_after_row() -> None:
    """The target at a place of an answer is the token that is read at the next place."""
    rows = rows_of(config_of("addition"), "train", range(12), 5)
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
    assert_equal(batch_of(kind, 1, "seed=1", "data.seed=0"), trained)
    assert not (trained.ids_BT[:, None] == held_out.ids_BT).all(axis=-1).any()


@pytest.mark.parametrize("period", [1e-4, 0.02])
def test_spikes_stand_at_their_times(period: float) -> None:
    """Positions are radians of the fastest pair, queries last, padding a document of its own."""
    config = config_of("spikes", f"data.period={period}")
    batch = training_batch(config, data_of(config), 1)
    rows = rows_of(config, "train", range(4))
    np.testing.assert_allclose(batch.position_BT * period / (2 * np.pi), rows.times_NT)
    np.testing.assert_array_equal(batch.place_BP, [range(240, 256)] * 4)
    np.testing.assert_array_equal(batch.document_BT, rows.ids_NT == PADDING)
    np.testing.assert_array_equal(batch.target_BP, rows.latent_NQD)
    assert batch.num_targets == 4 * 16
    assert batch.hashed_BS.max() < 2**32
    np.testing.assert_allclose(batch.hashed_BS[:, -16:] / 1e6, [QUERY_S] * 4, atol=1e-6)


# -- hashes, configs and vocabularies --------------------------------------------------------------


@each_kind
def test_the_hash_is_of_what_rows_follow_from(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hash leaves out the seed and the length of rows, in which runs may differ."""
    config = config_of(kind)
    data = data_of(config)
    same = data_of(config_of(kind, "seed=9", "data.seed=4", "train.seq_len=320", "data.name=mine"))
    before = data.data_sha256
    assert same.data_sha256 == before
    assert len({data_of(config_of(each)).data_sha256 for each in KINDS}) == len(KINDS)

    task = spec_of(config)
    if task.key:
        default = getattr(data.data, task.key)
        is_count = isinstance(default, int)
        departing = default + 1 if is_count else {"order": "reversed", "period": 0.001}[task.key]
        assert data_of(config_of(kind, f"data.{task.key}={departing}")).data_sha256 != before
    newer = dataclasses.replace(task, version=task.version + 1)
    monkeypatch.setattr(f"rope_exp.tasks.{kind}.SPEC", newer)
    assert data_of(config_of(kind)).data_sha256 != before


@each_kind
def test_the_choice_of_data_is_enough(kind: str) -> None:
    """It chooses its tokenizer, whatever the size prefers, its objective and its head."""
    config = composed(f"data={kind}", "model=10m")
    task = spec_of(config)
    assert config.tokenizer.name == "task"
    assert config.tokenizer.kind == "task"
    assert config.train.objective == task.objective
    assert config.causal == (task.objective == "causal")
    assert RunConfig.from_dict(config.to_dict()) == config
    decoder = Decoder(config.architecture(len(task.tokens)))
    assert len(decoder.lm_head.weight) == (task.num_outputs or len(task.tokens))


@each_kind
def test_its_tokenizer_reads_and_writes_its_characters(kind: str, tmp_path: Any) -> None:
    config = config_of(kind)
    data = data_of(config)
    (tmp_path / "tokenizer.json").write_text(data.tokenizer_json)
    tokenizer = load_tokenizer(tmp_path / "tokenizer.json")
    tokens = spec_of(config).tokens
    between = " " if max(map(len, tokens)) > 1 else ""
    text = between.join(tokens)
    assert tokenizer.encode(text).ids == list(range(data.vocab_size))
    assert tokenizer.decode(list(range(data.vocab_size))) == text
    assert tokenizer.get_vocab_size() == data.vocab_size
