"""Tests of the differences from QK-RoPE in all settings: which settings are told and drawn."""

from collections.abc import Mapping
from dataclasses import replace

import pytest
from support.charts import records
from support.pages import make_tables
from support.records import ended_at, report_on, runs_of

from rope_exp.report import Report, build
from rope_exp.studies.settings import files, relations

FEW = ("qk_rope", "qkvo_rope", "vo_rope", "nope")


@pytest.fixture(scope="module")
def tables() -> dict[str, Report]:
    return make_tables()


def table_of(tables: Mapping[str, Report]) -> str:
    """Return settings.md; empty without it."""
    return files([], {}, tables).get("settings/settings.md", b"").decode()


def test_the_figure_draws_what_was_judged(tables: dict[str, Report]) -> None:
    """One seed has no interval; a difference outside the axis is an arrow at its edge."""
    far = [
        ended_at(run, 2.5 if run.row == "qkvo_rope" else 3.5)
        for run in runs_of("english", *FEW[:2], seeds=(0,))
    ]
    chart = relations({"english": tables["english"], "far": build(far, ["pe"])})
    judged = tables["english"].pairs["published"].set_index("b")
    first, second = records(chart, "relation")
    own = judged.loc["qkvo_rope"]
    drawn = [first[key] for key in ("delta", "low", "high")]
    assert drawn == [own[key] for key in ("delta", "delta_ci_low_alone", "delta_ci_high_alone")]
    assert [first["is_tested"], second["is_tested"], second["low"]] == [True, False, None]
    assert [first["shape"], second["shape"]] == ["circle", "triangle-left"]
    assert second["delta"] == pytest.approx(-1)


def test_other_objectives_and_precisions_are_not_drawn(tables: dict[str, Report]) -> None:
    """They stand in the table."""
    for key, value in (("objective", "mlm"), ("precision", "fp32")):
        other = [
            replace(run, config=run.config.replace("train", **{key: value}))
            for run in runs_of("english", *FEW, seeds=(0,))
        ]
        found = {"english": tables["english"], "other": build(other, ["pe"])}
        assert "](../other/table.md)" in table_of(found)
        assert relations(found) is None


def test_a_setting_that_was_run_again_is_left_out(tables: dict[str, Report]) -> None:
    """It repeats one seed of a larger setting; nor is a setting without the reference shown."""
    again = report_on("english", *FEW, seeds=(0,))
    without = report_on("english", "vo_rope", "nope")
    assert table_of({**tables, "again": again, "without": without}) == table_of(tables)
    assert table_of({"english": tables["english"], "without": without}) == ""
