"""Test of the front of rows by the bytes that they cache, against its definition."""

from hypothesis import given
from hypothesis import strategies as st

from rope_exp.report.charts.cached import Point, front

points = st.lists(
    st.builds(
        Point,
        st.uuids().map(str),
        st.integers(1, 8).map(float),
        st.integers(-8, 8).map(float),
    ),
    min_size=1,
)


@given(points)
def test_the_front_is_what_nothing_dominates(found: list[Point]) -> None:
    """By definition, a point dominates if neither bytes nor loss is larger, and one is smaller."""

    def dominated(point: Point) -> bool:
        return any(
            other.num_bytes <= point.num_bytes
            and other.delta <= point.delta
            and (other.num_bytes, other.delta) != (point.num_bytes, point.delta)
            for other in found
        )

    best = {(point.num_bytes, point.delta) for point in found if not dominated(point)}
    assert [(point.num_bytes, point.delta) for point in front(found)] == sorted(best)
