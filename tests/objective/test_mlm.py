"""Tests of masked tokens: their places, the tokens read there, and their random stream."""

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rope_exp.batches import HELD_OUT, Batch, chain_sha256, next_tokens, training_ids
from rope_exp.objective.mlm import hidden, num_predicted

VOCAB = 50
MASK = VOCAB
TOKENS = np.arange(4001, dtype=np.uint16) % VOCAB
# For seed 0, step 1, row 0: six of forty places, and whether each is read as the mask.
GOLDEN_PLACES = [3, 10, 16, 17, 32, 36]
GOLDEN_HIDDEN = [True, False, True, True, True, False]


def plain_batch(step: int, seed: int = 3) -> Batch:
    return next_tokens(training_ids(TOKENS, seed, range(6 * step - 6, 6 * step), 40))


def plain_rows(num_rows: int, length: int, *, seed: int = 0) -> Batch:
    generator = np.random.default_rng(seed)
    return next_tokens(generator.integers(0, VOCAB, size=(num_rows, length + 1)))


@given(st.integers(0, 2**63 - 1), st.integers(1, 10**9), st.integers(1, 60))
def test_of_each_row_so_many_places_are_hidden(seed: int, step: int, length: int) -> None:
    """Places are distinct and ascending, targets are the original tokens, the rest is kept."""
    places = num_predicted(length)
    assert places == max(1, round(0.15 * length))
    plain = plain_rows(4, length, seed=seed)
    found = hidden(plain, (seed, step), MASK)
    assert found.place_BP is not None
    assert found.place_BP.shape == found.target_BP.shape == (4, places)
    assert found.num_targets == 4 * places

    assert (np.diff(found.place_BP, axis=1) > 0).all()
    restored_BT = found.ids_BT.copy()
    np.put_along_axis(restored_BT, found.place_BP, found.target_BP, axis=1)
    assert np.array_equal(restored_BT, plain.ids_BT)
    assert set(found.ids_BT.ravel().tolist()) <= set(range(MASK + 1))


@given(st.integers(1, 400), st.integers(1, 6))
def test_masks_of_a_row_depend_on_seed_step_and_row_alone(step: int, count: int) -> None:
    """The rows that follow do not matter."""
    plain = plain_batch(step)
    whole = hidden(plain, (3, step), MASK).rows(slice(count))
    for ours, theirs in zip(hidden(plain.rows(slice(count)), (3, step), MASK), whole, strict=True):
        assert np.array_equal(ours, theirs)


def test_each_place_and_each_reading_has_its_share() -> None:
    """Counts over 20,000 rows lie within five standard deviations of a binomial."""
    count = 20_000
    plain = next_tokens(np.full((count, 21), 7))
    found = hidden(plain, (5, 1), MASK)
    assert found.place_BP is not None

    def near(number: int, trials: int, share: float) -> bool:
        deviation = (trials * share * (1 - share)) ** 0.5
        return abs(number - trials * share) < 5 * deviation

    of_places = np.bincount(found.place_BP.ravel(), minlength=20)
    assert all(near(number, count, 3 / 20) for number in of_places)

    read_N = np.take_along_axis(found.ids_BT, found.place_BP, axis=1).ravel()
    trials = 3 * count
    assert near(int((read_N == MASK).sum()), trials, 0.8)
    # The token is kept, or drawn at random again.
    assert near(int((read_N == 7).sum()), trials, 0.1 + 0.1 / VOCAB)
    for token in set(range(VOCAB)) - {7}:
        assert near(int((read_N == token).sum()), trials, 0.1 / VOCAB)


def test_the_masks_are_those_that_were_published() -> None:
    """The masks are these with every numpy on every machine, or runs could not be compared."""
    found = hidden(plain_rows(1, 40), (0, 1), MASK)
    assert found.place_BP is not None
    assert found.place_BP.tolist() == [GOLDEN_PLACES]
    read = np.take_along_axis(found.ids_BT, found.place_BP, axis=1)
    assert (read == MASK).tolist() == [GOLDEN_HIDDEN]


def test_the_hash_of_the_order_covers_masks() -> None:
    """It covers the source's own columns, the tokens read, the places and the targets."""
    plain = plain_batch(1)
    found = hidden(plain, (3, 1), MASK)
    digests = {
        chain_sha256("", found.hashed_BS),
        chain_sha256("", hidden(plain_batch(1, 4), (4, 1), MASK).hashed_BS),
    }
    parts = [plain.hashed_BS, found.ids_BT, found.place_BP, found.target_BP]
    for part in parts:
        assert part is not None
        part[2, 1] += 1
        digests.add(chain_sha256("", np.concatenate(parts, axis=1)))
        part[2, 1] -= 1
    assert len(digests) == 6
    assert chain_sha256("", np.concatenate(parts, axis=1)) in digests


def test_held_out_masks_are_of_no_step_of_training() -> None:
    rows = plain_rows(6, 40)
    first = hidden(rows, HELD_OUT, MASK)
    for key in itertools.product((0, 1), range(1, 50)):
        assert not np.array_equal(hidden(rows, key, MASK).place_BP, first.place_BP)
