"""What a run reads: stage by stage, whatever its variant, with masks where hidden tokens count."""

import itertools
from typing import Any

import numpy as np
import pytest

from rope_exp.config.run import RunConfig
from rope_exp.config.sections import TrainConfig
from rope_exp.data.batches import Batch, Batches, validation_ids
from rope_exp.data.sources import held_out_rows, training_source

TOKENS = np.arange(5000, dtype=np.uint16)  # each token says where it stood
VOCAB = 5000
STAGES = ((8, 5), (32, 3), (8, 4), (16, 2, 5))
NUM_STEPS = 14


def make_config(**changes: Any) -> RunConfig:
    train = {"num_steps": NUM_STEPS, "global_batch_size": 8, "seq_len": 16, "stages": STAGES}
    sections = {name: changes.pop(name) for name in ("pe", "data") if name in changes}
    values: dict[str, Any] = {"seed": 3, "train": train | changes, **sections}
    return RunConfig.from_dict(values)


def batches(**changes: Any) -> list[Batch]:
    source = training_source(make_config(**changes), TOKENS, VOCAB)
    return [source.batch(step) for step in range(1, NUM_STEPS + 1)]


def test_each_step_has_the_shape_of_its_stage() -> None:
    shapes = [batch.ids_BT.shape for batch in batches()]
    assert shapes == [(16, 8)] * 5 + [(4, 32)] * 3 + [(16, 8)] * 4 + [(5, 16)] * 2

    source = training_source(make_config(), TOKENS, VOCAB)
    for step, batch in enumerate(batches(), start=1):
        assert source.num_targets(step) == batch.num_targets == batch.ids_BT.size


def test_stages_of_one_length_read_no_window_twice() -> None:
    """Within an epoch: the second goes on where the first, and what stood between, had come to."""
    firsts = [int(first) for batch in batches() for first in batch.ids_BT[:, 0]]
    of_length = firsts[: 5 * 16] + firsts[5 * 16 + 3 * 4 : -2 * 5]
    assert len(of_length) == 9 * 16
    assert len(set(of_length)) == len(of_length)
    assert {first % 8 for first in of_length} == {0}


def test_a_stage_reads_what_a_run_of_its_length_would() -> None:
    """The samples of all steps before it count, of whatever length."""
    found = batches()
    alone = Batches(TOKENS, seed=3, batch_size=4, seq_len=32)
    # 80 samples before: as many as 20 steps of four.
    for step in (6, 7, 8):
        assert np.array_equal(found[step - 1].hashed_BS, alone.ids(20 + step - 5))


def test_one_length_has_the_batches_that_it_always_had() -> None:
    source = training_source(make_config(stages=None), TOKENS, VOCAB)
    assert source == Batches(TOKENS, seed=3, batch_size=8, seq_len=16)


@pytest.mark.parametrize("objective", ["causal", "mlm"])
def test_all_variants_read_the_same(objective: str) -> None:
    """The order of tokens and their masks follow from the data's seed alone."""
    ours = batches(objective=objective)
    others = batches(objective=objective, pe={"rotate": ["v", "o"]})
    elsewhere = batches(objective=objective, data={"seed": 4})
    for one, same, other in zip(ours, others, elsewhere, strict=True):
        assert np.array_equal(one.hashed_BS, same.hashed_BS)
        assert not np.array_equal(one.hashed_BS, other.hashed_BS)


def test_masks_stand_on_the_tokens_of_causal_training() -> None:
    """Each stage hides its own share, and ranks get their rows."""
    source = training_source(make_config(objective="mlm"), TOKENS, VOCAB)
    for step, plain in enumerate(batches(), start=1):
        found = source.batch(step)
        length = plain.ids_BT.shape[1]
        assert found.target_BP.shape[1] == max(1, round(0.15 * length))
        assert source.num_targets(step) == found.num_targets

        original = found.ids_BT.copy()
        assert found.place_BP is not None
        np.put_along_axis(original, found.place_BP, found.target_BP, axis=1)
        assert np.array_equal(original, plain.ids_BT)
        part = source.batch(step, slice(2, 4))
        assert np.array_equal(part.hashed_BS, found.hashed_BS[2:4])


def test_steps_of_a_stage_have_masks_of_their_own() -> None:
    hidden = [batch.place_BP for batch in batches(objective="mlm")]
    of_length = [place_BP.tolist() for place_BP in hidden if place_BP is not None]
    assert all(first != second for first, second in itertools.pairwise(of_length))


def test_held_out_rows_are_those_of_every_run() -> None:
    windows_NS = validation_ids(TOKENS, 6, 16)
    causal = held_out_rows(TrainConfig(), windows_NS, VOCAB)
    assert np.array_equal(causal.target_BP, windows_NS[:, 1:])

    mlm = TrainConfig(objective="mlm")
    first = held_out_rows(mlm, windows_NS, VOCAB)
    assert np.array_equal(held_out_rows(mlm, windows_NS, VOCAB).hashed_BS, first.hashed_BS)
    assert first.target_BP.shape == (6, 2)
    assert np.array_equal(first.rows(slice(1, None, 2)).target_BP, first.target_BP[1::2])


def test_a_stage_longer_than_the_text_has_no_window() -> None:
    with pytest.raises(ValueError, match="20 tokens hold no window of 33"):
        training_source(make_config(), TOKENS[:20], VOCAB)
