"""Tests of the batches of a run: stages, masks, and equality for all variants."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rope_exp.batches import Batch, training_ids, validation_ids
from rope_exp.config import RunConfig
from rope_exp.sources import held_out_rows, training_batch

TOKENS = np.arange(5000, dtype=np.uint16)  # each token is its own index
STAGES = ((8, 5), (32, 3), (8, 4), (16, 2, 5))
NUM_STEPS = 14


def make_config(**changes: Any) -> RunConfig:
    train = {"num_steps": NUM_STEPS, "global_batch_size": 8, "seq_len": 16, "stages": STAGES}
    sections = {name: changes.pop(name) for name in ("pe", "data") if name in changes}
    values: dict[str, Any] = {"seed": 3, "train": train | changes, **sections}
    return RunConfig.from_dict(values)


# A fake prepared corpus.
SIDES = {"train": TOKENS, "validation": TOKENS}
PREPARED: Any = SimpleNamespace(tokens=SIDES, vocab_size=len(TOKENS), corpus={"end_id": 7})


def batches(**changes: Any) -> list[Batch]:
    config = make_config(**changes)
    return [training_batch(config, PREPARED, step) for step in range(1, NUM_STEPS + 1)]


def test_a_stage_reads_what_a_run_of_its_length_would() -> None:
    """Sample numbers continue after all stages before it, so none of an epoch is read twice."""
    shapes = [batch.ids_BT.shape for batch in batches()]
    assert shapes == [(16, 8)] * 5 + [(4, 32)] * 3 + [(16, 8)] * 4 + [(5, 16)] * 2
    first = 0
    for batch in batches():
        num_rows, length = batch.ids_BT.shape
        alone = training_ids(TOKENS, 3, range(first, first + num_rows), length)
        assert np.array_equal(batch.hashed_BS, alone)
        first += num_rows


@pytest.mark.parametrize("objective", ["causal", "mlm"])
def test_all_variants_read_the_same(objective: str) -> None:
    """The order of tokens and their masks depend only on the data seed."""
    ours = batches(objective=objective)
    others = batches(objective=objective, pe={"rotate": ["v", "o"]})
    elsewhere = batches(objective=objective, data={"seed": 4})
    for one, same, other in zip(ours, others, elsewhere, strict=True):
        assert np.array_equal(one.hashed_BS, same.hashed_BS)
        assert not np.array_equal(one.hashed_BS, other.hashed_BS)


def test_held_out_rows_are_those_of_every_run() -> None:
    windows_NS = validation_ids(TOKENS, 6, 16)
    causal = held_out_rows(make_config(eval_sequences=6), PREPARED)
    assert np.array_equal(causal.target_BP, windows_NS[:, 1:])

    first = held_out_rows(make_config(eval_sequences=6, objective="mlm"), PREPARED)
    assert first.target_BP.shape == (6, 2)
    others = {"pe": {"rotate": ["v", "o"]}, "data": {"seed": 4}, "stages": None}
    again = held_out_rows(make_config(eval_sequences=6, objective="mlm", **others), PREPARED)
    assert np.array_equal(again.hashed_BS, first.hashed_BS)
