"""Tests that labels are moved apart only as far as needed, and keep their order."""

import numpy as np
import pandas as pd
from hypothesis import given
from hypothesis import strategies as st

from rope_exp.figures.curves import spread

HEIGHTS = st.lists(st.floats(0, 1), min_size=1, max_size=16)


@given(HEIGHTS)
def test_labels_keep_their_gap_their_order_and_the_axes(wanted: list[float]) -> None:
    gap = 0.06
    placed = spread(pd.Series(wanted), gap, 0, 1).sort_index()
    order = np.argsort(wanted, kind="stable")
    assert placed[order].diff().min() >= gap - 1e-9 or len(placed) == 1
    assert min(placed) >= -1e-9
    assert max(placed) <= 1 + 1e-9
