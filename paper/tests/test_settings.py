"""Test of the differences from QK-RoPE in all settings: which settings are shown."""

from collections.abc import Mapping
from functools import partial

import support.records
from settings import files
from tables import RECORDS

from rope_exp.report import Report, build

runs_of = partial(support.records.runs_of, records=RECORDS)
FEW = ("qk_rope", "qkvo_rope", "vo_rope", "nope")


def table_of(tables: Mapping[str, Report]) -> str:
    """Return settings.md; empty without it."""
    return files([], {}, tables).get("settings/settings.md", b"").decode()


def test_a_setting_that_was_run_again_is_left_out() -> None:
    """It repeats one seed of a larger setting; nor is a setting without the reference shown."""
    long = [run for run in runs_of("tokens") if run.factors["train.num_steps"] == 2000]
    tables = {
        "tokens/train.num_steps=2000": build(long, ["pe"]),
        "english": build(runs_of("english"), ["pe"]),
    }
    again = build(runs_of("english", *FEW, seeds=(0,)), ["pe"])
    without = build(runs_of("english", "vo_rope", "nope"), ["pe"])
    assert table_of(tables)
    assert table_of({**tables, "again": again, "without": without}) == table_of(tables)
    assert table_of({"english": tables["english"], "without": without}) == ""
