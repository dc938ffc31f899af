"""Tests that labels are moved apart only as far as needed, and keep their order."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rope_exp.figures.style import spread

HEIGHTS = st.lists(st.floats(0, 1), min_size=1, max_size=16)


@given(HEIGHTS)
def test_labels_keep_their_gap_their_order_and_the_axes(wanted: list[float]) -> None:
    gap = 0.06
    placed = spread(wanted, gap, 0, 1)
    order = np.argsort(wanted, kind="stable")
    assert np.diff(np.array(placed)[order]).min(initial=np.inf) >= gap - 1e-9
    assert min(placed) >= -1e-9
    assert max(placed) <= 1 + 1e-9
