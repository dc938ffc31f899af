"""Tests of the curves: they end at the report's differences, and diverged runs hide none."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.charts import explanation, parts, records, words
from support.reports import make_run, report_of

from rope_exp.config.variants import SUBSETS
from rope_exp.report.charts.curves import curves

DIFFERENCE = "validation loss minus"


def layers(chart: Any, title: str, mark: str) -> list[dict[str, Any]]:
    """Return the layers with this mark in the panel whose vertical axis has this title."""
    found = []
    for layer in parts(chart.to_dict()):
        y = layer.get("encoding", {}).get("y", {})
        if "mark" in layer and layer["mark"]["type"] == mark and title in str(y.get("title")):
            found.append(layer)
    return found


def points(chart: Any, title: str, label: str) -> list[dict[str, Any]]:
    """Return the points of a row's line in a panel."""
    found = layers(chart, title, "line")
    if not found:
        return []
    lines = chart.to_dict()["datasets"][found[0]["data"]["name"]]
    return [point for point in lines if point["label"] == label]


def test_curves_end_at_the_differences_of_the_report(tmp_path: Path) -> None:
    for seed in (0, 1):
        make_run(tmp_path, seed=seed, loss=3.5 + 0.1 * seed)
        make_run(tmp_path, pe="vo_rope", seed=seed, loss=3.6 + 0.12 * seed)
    report = report_of(tmp_path)
    chart = curves(report)

    for label, row in report.rows.items():
        end = points(chart, DIFFERENCE, label)[-1]
        assert end["tokens"] == row.runs[0].config.train.num_tokens
        assert end["mean"] == pytest.approx(row.ours.delta, abs=1e-6)
        loss = points(chart, "'validation loss'", label)[-1]
        assert loss["mean"] == pytest.approx(row.ours.loss_mean, abs=1e-6)
        assert points(chart, "'training loss'", label)


def test_a_band_is_one_deviation_and_says_so(tmp_path: Path) -> None:
    """A row with one seed has no band."""
    for seed in (0, 1):
        make_run(tmp_path, seed=seed, loss=3.5 + 0.1 * seed)
        make_run(tmp_path, pe="vo_rope", seed=seed, loss=3.6 + 0.12 * seed)
    make_run(tmp_path, pe="nope", loss=3.7)
    chart = curves(report_of(tmp_path))
    end = points(chart, DIFFERENCE, "vo_rope")[-1]
    assert end["high"] - end["mean"] == pytest.approx(np.std([0.1, 0.12], ddof=1), abs=1e-5)
    assert end["mean"] - end["low"] == pytest.approx(end["high"] - end["mean"], abs=1e-5)
    assert points(chart, DIFFERENCE, "nope")[-1]["high"] is None
    assert "band: one SD of the differences over seeds, not a 95 % interval" in explanation(chart)


def test_a_diverged_run_of_the_reference_cuts_no_curve(tmp_path: Path) -> None:
    for seed in (0, 1, 2):
        make_run(tmp_path, pe="vo_rope", seed=seed, loss=3.6 + 0.12 * seed)
    for seed in (0, 1):
        make_run(tmp_path, seed=seed, loss=3.5 + 0.1 * seed)
    make_run(tmp_path, seed=2, loss=None, steps=100, result={"steps": 100})
    report = report_of(tmp_path)

    row = report.rows["vo_rope"]
    end = points(curves(report), DIFFERENCE, "vo_rope")[-1]
    assert end["tokens"] == row.runs[0].config.train.num_tokens
    assert end["mean"] == pytest.approx(row.ours.delta, abs=1e-6)


def test_sixteen_rows_with_runs_that_blew_up_are_readable(tmp_path: Path) -> None:
    for place, sites in enumerate(SUBSETS):
        pe = f"pe.rotate=[{','.join(sites)}]"
        if sites == ("o",):
            last = {"steps": 105, "train/loss_last": 1e30, "diverged_step": 106}
            folder = make_run(tmp_path, pe=pe, loss=None, steps=100, result=last)
        else:
            make_run(tmp_path, pe=pe, loss=3.5 + 0.01 * place)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 105, "train/loss": 1e30, "val/loss": 1e30}\n')

    chart = curves(report_of(tmp_path))
    for title in (DIFFERENCE, "'validation loss'", "'training loss'"):
        [line] = layers(chart, title, "line")
        assert line["mark"]["clip"]
        assert max(line["encoding"]["y"]["scale"]["domain"]) < 10

    names = records(chart, "place")
    gaps = np.diff(sorted(name["place"] for name in names))
    low, high = layers(chart, DIFFERENCE, "line")[0]["encoding"]["y"]["scale"]["domain"]
    # A line of text takes 11 of the panel's 340 pixels.
    assert len(names) == 16
    assert gaps.min() >= 11 / 340 * (high - low)
    assert low <= min(name["place"] for name in names)
    assert max(name["place"] for name in names) <= high
    assert "O-RoPE (diverged)" in words(chart)

    # The diverged run ends with a cross in both panels of losses.
    crosses = [
        each for each in layers(chart, "loss'", "point") if "L1,-1" in each["mark"].get("shape", "")
    ]
    assert len(crosses) == 2
    data = chart.to_dict()["datasets"]
    assert [len(data[cross["data"]["name"]]) for cross in crosses] == [1, 1]


def test_without_the_reference_losses_are_drawn_alone(tmp_path: Path) -> None:
    make_run(tmp_path, pe="vo_rope")
    chart = curves(report_of(tmp_path))
    assert layers(chart, DIFFERENCE, "line") == []
    assert points(chart, "'validation loss'", "vo_rope")
    assert "No differences: qk_rope has no runs here." in explanation(chart)


def test_without_an_evaluation_there_are_no_curves(tmp_path: Path) -> None:
    make_run(tmp_path, loss=None, steps=20)
    assert curves(report_of(tmp_path)) is None
