"""Curves end at the report's differences, and nothing that blew up hides them."""

from pathlib import Path

import pytest
from matplotlib.lines import Line2D
from support.figures import artists, line, overlapping, texts
from support.reports import make_run, report_of

from rope_exp.config.variants import SUBSETS
from rope_exp.report.paper.curves import curves


def test_curves_end_at_the_differences_of_the_report(tmp_path: Path) -> None:
    for seed in (0, 1):
        make_run(tmp_path, seed=seed, loss=3.5 + 0.1 * seed)
        make_run(tmp_path, pe="vo_rope", seed=seed, loss=3.6 + 0.12 * seed)
    report = report_of(tmp_path)
    figure = curves(report)
    assert figure is not None

    for label, row in report.rows.items():
        tokens, deltas = line(figure, f"{label} delta")
        assert tokens[-1] == row.runs[0].config.train.num_tokens
        assert deltas[-1] == pytest.approx(row.ours.delta)
        assert line(figure, f"{label} val/loss")[1][-1] == pytest.approx(row.ours.loss_mean)
        assert f"{label} train/loss" in artists(figure)


def test_a_diverged_run_of_the_reference_cuts_no_curve(tmp_path: Path) -> None:
    for seed in (0, 1, 2):
        make_run(tmp_path, pe="vo_rope", seed=seed, loss=3.6 + 0.12 * seed)
    for seed in (0, 1):
        make_run(tmp_path, seed=seed, loss=3.5 + 0.1 * seed)
    make_run(tmp_path, seed=2, loss=None, steps=100, result={"steps": 100})
    report = report_of(tmp_path)
    figure = curves(report)
    assert figure is not None

    row = report.rows["vo_rope"]
    tokens, deltas = line(figure, "vo_rope delta")
    assert tokens[-1] == row.runs[0].config.train.num_tokens
    assert deltas[-1] == pytest.approx(row.ours.delta)


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

    figure = curves(report_of(tmp_path))
    assert figure is not None
    assert max(axes.get_ylim()[1] for axes in figure.axes) < 10
    assert overlapping(figure, " name") == []
    assert "O-RoPE (diverged)" in texts(figure)
    # Crossed out in both panels of losses.
    crosses = [each for each in figure.findobj(Line2D) if each.get_marker() == "x"]
    assert len(crosses) == 2


def test_without_the_reference_losses_are_drawn_alone(tmp_path: Path) -> None:
    make_run(tmp_path, pe="vo_rope")
    figure = curves(report_of(tmp_path))
    assert figure is not None
    assert "vo_rope delta" not in artists(figure)
    assert "vo_rope val/loss" in artists(figure)
    assert any("Without qk_rope there are no differences." in said for said in texts(figure))
