"""Test of the differences from QK-RoPE in all settings: which settings are shown."""

from collections.abc import Mapping
from functools import partial

import support.records
from settings import files_of_tables, pilot_tables
from tables import RECORDS

from rope_exp.report import Report, build

runs_of = partial(support.records.runs_of, records=RECORDS)
FEW = ("qk_rope", "qkvo_rope", "vo_rope", "nope")


def table_of(tables: Mapping[str, Report]) -> str:
    """Return settings.md; empty without it."""
    return files_of_tables(tables).get("settings/settings.md", b"").decode()


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


def test_the_pilot_has_the_runs_that_share_a_seed() -> None:
    """At each rate: its runs that set no other factor, and whose order of batches is the seed's."""
    runs = runs_of("noise")
    tables = pilot_tables(runs)
    assert {*tables} == {"optim.lr=0.0015", "optim.lr=0.003"}
    for rate, table in tables.items():
        assert {*table.rows} == {"qk_rope", "vo_rope", "nope"}
        lr = float(rate.removeprefix("optim.lr="))
        for label, row in table.rows.items():
            expected = {}
            for run in runs:
                seed = run.config.seed
                by_default = {"data.seed": seed, "seed": seed}
                factors = {key: run.factors[key] for key in run.factors if key != "optim.lr"}
                in_table = run.config.optim.lr == lr and run.config.pe.label == label
                if in_table and factors == by_default:
                    expected[seed] = run.loss
            assert len(expected) == 5
            assert row.losses == expected
    assert "noise/noise.md" in table_of({f"noise/{rate}": table for rate, table in tables.items()})
