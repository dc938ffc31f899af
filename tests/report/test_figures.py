"""The figures draw whatever runs there are."""

from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from support.reports import make_nine, make_run, report_of

from rope_exp.config.variants import SUBSETS
from rope_exp.report import figures
from rope_exp.report.figures import against_published, loss_curves

PNG = b"\x89PNG"


def test_a_picture_has_no_date_and_no_version(tmp_path: Path) -> None:
    make_nine(tmp_path)
    report = report_of(tmp_path)
    for draw in (loss_curves, against_published):
        picture = draw(report)
        assert picture.startswith(PNG)
        assert b"Software" not in picture
        assert picture == draw(report)


def test_sixteen_variants_and_runs_that_blew_up_are_drawn(tmp_path: Path) -> None:
    for sites in SUBSETS:
        pe = f"pe.rotate=[{','.join(sites)}]"
        for seed in (0, 1):
            if sites == ("o",) and seed == 1:
                last = {"steps": 105, "train/loss_last": 1e30, "diverged_step": 106}
                folder = make_run(tmp_path, pe=pe, seed=1, loss=None, steps=100, result=last)
            else:
                make_run(tmp_path, pe=pe, seed=seed, loss=3.5 + 0.01 * len(sites))
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 105, "train/loss": 1e30, "val/loss": 1e30}\n')
    assert len(loss_curves(report_of(tmp_path))) > 50_000


def test_a_diverged_run_of_the_reference_cuts_no_curve(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in (0, 1):
        make_run(tmp_path, pe="vo_rope", seed=seed, loss=3.6 + 0.1 * seed)
    make_run(tmp_path, loss=3.5)
    make_run(tmp_path, seed=1, loss=None, steps=100, result={"steps": 100})
    drawn: list[Figure] = []
    monkeypatch.setattr(figures, "_png", lambda figure, _: drawn.append(figure))
    report = report_of(tmp_path)
    loss_curves(report)

    # The thick lines: the means.
    of_differences = [line for line in drawn[0].axes[1].lines if line.get_linewidth() == 1.3]
    ends = [float(np.asarray(line.get_xdata(), dtype=float)[-1]) for line in of_differences]
    assert ends == [report.runs[0].config.train.num_tokens] * 2


@pytest.mark.parametrize("steps", [0, 20])
def test_a_run_that_has_hardly_begun_is_drawn(tmp_path: Path, steps: int) -> None:
    make_run(tmp_path, loss=None, steps=steps)
    report = report_of(tmp_path)
    assert loss_curves(report).startswith(PNG)
    assert against_published(report).startswith(PNG)
