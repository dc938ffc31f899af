"""Test of the front of rows by the bytes that they cache, against its definition."""

import pandas as pd
from hypothesis import given
from hypothesis import strategies as st

from rope_exp.figures.cached import front

points = st.lists(
    st.tuples(st.integers(1, 8).map(float), st.integers(-8, 8).map(float)), min_size=1
)


@given(points)
def test_the_front_is_what_nothing_dominates(found: list[tuple[float, float]]) -> None:
    """By definition, a point dominates if neither bytes nor loss is larger, and one is smaller."""

    def dominated(point: tuple[float, float]) -> bool:
        num_bytes, delta = point
        return any(
            other[0] <= num_bytes and other[1] <= delta and other != point for other in found
        )

    best = front(pd.DataFrame(found, columns=["num_bytes", "delta"]))
    expected = sorted({point for point in found if not dominated(point)})
    assert [*best.itertuples(index=False, name=None)] == expected
