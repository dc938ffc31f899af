"""Tests of the batches of a run: stages, masks, and equality for all variants."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rope_exp.batches import Batch, training_ids, validation_ids
from rope_exp.config import RunConfig
from rope_exp.sources import held_out_rows, training_batch

TOKENS = np.arange(5000, dtype=np.uint16)  # each token is its own index
VOCAB = 5000
STAGES = ((8, 5), (32, 3), (8, 4), (16, 2, 5))
NUM_STEPS = 14


def make_config(**changes: Any) -> RunConfig:
    train = {"num_steps": NUM_STEPS, "global_batch_size": 8, "seq_len": 16, "stages": STAGES}
    sections = {name: changes.pop(name) for name in ("pe", "data") if name in changes}
    values: dict[str, Any] = {"seed": 3, "train": train | changes, **sections}
    return RunConfig.from_dict(values)


def prepared(tokens: np.ndarray = TOKENS) -> Any:
    """Return a fake prepared corpus; id 7 ends a document."""
    return SimpleNamespace(
        tokens={"train": tokens, "validation": tokens}, vocab_size=VOCAB, corpus={"end_id": 7}
    )


def batches(**changes: Any) -> list[Batch]:
    config = make_config(**changes)
    return [training_batch(config, prepared(), step) for step in range(1, NUM_STEPS + 1)]


def test_each_step_has_the_shape_of_its_stage() -> None:
    shapes = [batch.ids_BT.shape for batch in batches()]
    assert shapes == [(16, 8)] * 5 + [(4, 32)] * 3 + [(16, 8)] * 4 + [(5, 16)] * 2
    assert all(batch.num_targets == batch.ids_BT.size for batch in batches())


def test_a_stage_reads_what_a_run_of_its_length_would() -> None:
    """Sample numbers continue after all stages before it, so none of an epoch is read twice."""
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


def test_masks_stand_on_the_tokens_of_causal_training() -> None:
    """Each stage hides 15 % of its own length."""
    for found, plain in zip(batches(objective="mlm"), batches(), strict=True):
        length = plain.ids_BT.shape[1]
        assert found.target_BP.shape[1] == max(1, round(0.15 * length))
        assert found.num_targets == found.target_BP.size

        original = found.ids_BT.copy()
        assert found.place_BP is not None
        np.put_along_axis(original, found.place_BP, found.target_BP, axis=1)
        assert np.array_equal(original, plain.ids_BT)


def test_held_out_rows_are_those_of_every_run() -> None:
    windows_NS = validation_ids(TOKENS, 6, 16)
    causal = held_out_rows(make_config(eval_sequences=6), prepared())
    assert np.array_equal(causal.target_BP, windows_NS[:, 1:])

    first = held_out_rows(make_config(eval_sequences=6, objective="mlm"), prepared())
    assert first.target_BP.shape == (6, 2)
    others = {"pe": {"rotate": ["v", "o"]}, "data": {"seed": 4}, "stages": None}
    again = held_out_rows(make_config(eval_sequences=6, objective="mlm", **others), prepared())
    assert np.array_equal(again.hashed_BS, first.hashed_BS)
