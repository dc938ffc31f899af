"""Test of the differences from QK-RoPE in all settings: which settings are shown."""

from collections.abc import Mapping

from settings import files
from support.records import make_tables, report_on

from rope_exp.report import Report

FEW = ("qk_rope", "qkvo_rope", "vo_rope", "nope")


def table_of(tables: Mapping[str, Report]) -> str:
    """Return settings.md; empty without it."""
    return files([], {}, tables).get("settings/settings.md", b"").decode()


def test_a_setting_that_was_run_again_is_left_out() -> None:
    """It repeats one seed of a larger setting; nor is a setting without the reference shown."""
    tables = make_tables()
    again = report_on("english", *FEW, seeds=(0,))
    without = report_on("english", "vo_rope", "nope")
    assert table_of({**tables, "again": again, "without": without}) == table_of(tables)
    assert table_of({"english": tables["english"], "without": without}) == ""
