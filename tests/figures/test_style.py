"""Tests of the looks of rows, limits of axes, moved names, and the front of caches."""

import itertools

import numpy as np
import pandas as pd
from hypothesis import given
from hypothesis import strategies as st

from rope_exp.figures.cached import front
from rope_exp.figures.curves import spread
from rope_exp.figures.style import SITES_OF, limits, look, parts


def test_all_sixteen_subsets_look_different_in_grey() -> None:
    """Fill and hue show which of Q and K rotate; dash and outline, which of V and O."""
    looks = {parts(label): look(label) for label in SITES_OF}
    seen = {(style["filled"], style["outline"], str(style["dash"])) for style in looks.values()}
    assert len(looks) == len(seen) == 16
    for (a, one), (b, other) in itertools.combinations(looks.items(), 2):
        assert (one["color"] == other["color"]) == (a[0] == b[0])
        assert (one["dash"] == other["dash"]) == (a[1] == b[1])


def test_rows_of_another_factor_look_different() -> None:
    """Looks follow the row's place, since hashes could give two rows of a figure one colour."""
    looks = [look(f"optim.lr={number}", number) for number in range(9)]
    assert len({one["color"] for one in looks}) == len({one["outline"] for one in looks}) == 9


def test_limits_leave_the_means_readable_beside_a_wide_interval() -> None:
    """Means take at least half of the axis; a narrow interval is shown whole."""
    low, high = limits([0.1, 0.4], [-9.0, 9.0])
    assert (0.4 - 0.0) / (high - low) > 0.45
    low, high = limits([0.1, 0.4], [0.38, 0.42])
    assert low < 0 < 0.42 < high < 0.45
    low, high = limits([])
    assert low < -0.001 < 0.001 < high


@given(st.lists(st.floats(0, 1), min_size=1, max_size=16))
def test_names_keep_their_gap_their_order_and_the_axes(wanted: list[float]) -> None:
    placed = spread(pd.Series(wanted), 0.06, 0, 1)
    ordered = placed.sort_index().iloc[np.argsort(wanted, kind="stable")]
    assert ordered.diff().fillna(1).min() >= 0.06 - 1e-9
    assert -1e-9 <= placed.min() <= placed.max() <= 1 + 1e-9


@given(st.lists(st.tuples(st.integers(1, 8), st.integers(-8, 8)), min_size=1))
def test_the_front_is_what_nothing_dominates(points: list[tuple[int, int]]) -> None:
    """By definition, a point dominates if neither bytes nor loss is larger, and one is smaller."""
    best = front(pd.DataFrame(points, columns=["num_bytes", "delta"], dtype=float))
    expected = sorted(
        {
            point
            for point in points
            if not any(
                other[0] <= point[0] and other[1] <= point[1] and other != point for other in points
            )
        }
    )
    assert [*best.itertuples(index=False, name=None)] == expected
