"""Tests of scripts/bench_figures.py: its files, and the numbers in them."""

import re

import bench_figures
import pytest


def test_the_files_are_those_that_the_script_draws() -> None:
    """After a change, `python scripts/bench_figures.py` draws them again.

    Only their texts and markers are compared, as widths follow the installed fonts.
    """
    for name, svg in bench_figures.figures().items():
        stored = (bench_figures.BENCH / name).read_text(encoding="utf-8")
        assert re.findall(r">([^<]+)</text>", stored) == re.findall(
            r">([^<]+)</text>", svg.decode()
        )
        assert stored.count("<path") == svg.decode().count("<path")


def test_every_number_of_the_page_is_drawn() -> None:
    """docs/performance.md says them of softmax attention and of rope_exp."""
    layer = bench_figures.lengths().set_index(["kind", "size"])
    assert layer.at[("softmax", 8192), "ms"] == pytest.approx(482, abs=1)
    assert layer.at[("shared_s2, QKVO", 8192), "ms"] == pytest.approx(899, abs=1)
    token = bench_figures.contexts().set_index(["kind", "size"])
    assert token.at[("softmax", 16384), "ms"] == pytest.approx(15.3, abs=0.05)
    assert token.at[("softmax", 16384), "mb"] == pytest.approx(67, abs=0.5)

    table = bench_figures.speeds().pivot(index="library", columns="model", values="tokens_per_s")
    assert [*table.loc["rope_exp"].round()] == [9468, 54442]


def test_a_kill_is_drawn_where_its_run_is() -> None:
    """Each run's steps never exceed 120, and each kill has the phase that the page counts."""
    points, kills = bench_figures.kills()
    assert points["steps"].max() == 120
    counts = kills["phase"].value_counts()
    assert counts.to_dict() == bench_figures.read("torture.json")["by_moment"]
