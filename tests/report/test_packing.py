"""What stands in many places of the page's data is kept once, and nothing is lost by it."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rope_exp.report.packing import packed

KEYS = st.sampled_from(["=", "loss", "notes", "a longer name"])
LEAVES = st.sampled_from([None, True, 3, 0.25, "", "short", "a text that is worth sharing", "="])
TREES = st.recursive(
    LEAVES, lambda inner: st.lists(inner) | st.dictionaries(KEYS, inner), max_leaves=40
)


def put_back(value: Any, shared: list[Any]) -> Any:
    """Do as state.js does."""
    if isinstance(value, list):
        return [put_back(each, shared) for each in value]
    if not isinstance(value, dict):
        return value
    if isinstance(number := value.get("="), int):
        return put_back(shared[number], shared)
    return {key: put_back(each, shared) for key, each in value.items()}


def without_numbers(value: Any) -> Any:
    """Leave no number under "=", which is what a shared value is told by."""
    if isinstance(value, list):
        return [without_numbers(each) for each in value]
    if not isinstance(value, dict):
        return value
    kept = {key: without_numbers(each) for key, each in value.items()}
    return {key: each for key, each in kept.items() if key != "=" or not isinstance(each, int)}


@given(TREES)
def test_nothing_is_lost(tree: Any) -> None:
    data = {"tree": without_numbers(tree)}
    said = packed(data)
    assert put_back(said["data"], said["shared"]) == data


def test_a_repeated_value_stands_once() -> None:
    table = {"columns": ["loss (mean)", "95 % interval"], "rows": []}
    source = "an article that every level cites"
    said = packed({"levels": [{"table": table, "source": source} for _ in range(3)]})
    assert json.dumps(said).count("loss (mean)") == 1
    assert json.dumps(said).count(source) == 1


def test_repeated_values_share_what_repeats_within_them() -> None:
    heading = "a heading of two tables"
    tables = [[heading, "one of the two"], [heading, "the other one"]]
    said = packed({"twice": tables, "again": tables})
    assert json.dumps(said).count(heading) == 1
    assert put_back(said["data"], said["shared"]) == {"twice": tables, "again": tables}


def test_short_values_stay_where_they_are() -> None:
    data = {"losses": [4.5, 4.5, "open", "open", None, None]}
    assert packed(data) == {"data": data, "shared": []}


def test_a_number_under_our_key_is_our_own_mistake() -> None:
    with pytest.raises(AssertionError):
        packed({"row": {"=": 3}})
