"""Tests that a number which was not finite, and so is null in an answer, is left out of texts."""

from dataclasses import replace
from typing import Any

import pytest
from support.records import runs_of

from rope_exp.probes import drift, floors, repeat, token_shift
from rope_exp.report import Report, build

ANSWERS: dict[str, Any] = {
    "drift": {"sites": {"q-k": {"median": None, "crossings": 0}}},
    "floors": {"share": [None, 0.0]},
    "repeat": {"reading": [1, 2], "loss": [None, 3.0]},
    "token_shift": {key: [None, 0.5] for key in ("mean", "sd", "min", "max")},
}


def answered(probe: str) -> Report:
    """Return a report on one run with this answer alone."""
    [run] = runs_of("english", "qk_rope", seeds=(0,))
    return build([replace(run, probes={probe: ANSWERS[probe]})], ["pe"])


def test_nulls_are_told_as_missing_numbers() -> None:
    assert "0 of 1" in repeat.tables(answered("repeat"))[1]
    assert "is nan, 0.500" in token_shift.notes(answered("token_shift"))[0]
    assert floors.notes(answered("floors")) == []


@pytest.mark.parametrize("pair", drift.PAIRS)
def test_a_null_median_is_not_small(pair: str) -> None:
    report = answered("drift")
    run = report.runs[0]
    answer = {"sites": {pair: ANSWERS["drift"]["sites"]["q-k"]}}
    [note] = drift.notes(build([replace(run, probes={"drift": answer})], ["pe"]))
    assert "not below" in note
