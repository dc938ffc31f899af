"""The forest and the grid show the numbers of the report."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.collections import QuadMesh
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.text import Text
from support.figures import artists, line, overlapping, texts
from support.reports import make_run, report_of

from rope_exp.evidence.published import TABLE
from rope_exp.report.content import Report
from rope_exp.report.paper.forest import forest
from rope_exp.report.paper.grid import grid
from rope_exp.report.tables import WORDS

# By seed; VO is far noisier than the others, O has one seed, V diverged.
OURS = {
    "qk_rope": [3.500, 3.600, 3.700],
    "qkvo_rope": [3.501, 3.602, 3.700],
    "vo_rope": [3.9, 3.5, 3.4],
    "k_rope": [3.6, 3.7005, 3.7995],
    "o_rope": [3.7],
    "pe.rotate=[q,v]": [3.45, 3.551, 3.652],
}


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    runs = tmp_path_factory.mktemp("runs")
    for pe, losses in OURS.items():
        for seed, loss in enumerate(losses):
            make_run(runs, pe=pe, seed=seed, loss=loss)
    make_run(runs, pe="v_rope", loss=None, steps=100, result={"steps": 100})
    return report_of(runs)


def drawn(figure: Figure | None) -> Figure:
    assert figure is not None
    return figure


def test_the_forest_draws_what_was_judged(report: Report) -> None:
    figure = drawn(forest(report))
    assert set(report.against) == {"qkvo_rope", "vo_rope", "k_rope", "qv_rope"}
    for label, judged in report.against.items():
        assert line(figure, f"{label} delta")[0] == [judged.delta]
        own = report.alone.against[label]
        assert line(figure, f"{label} interval")[0] == [own.low, own.high]
        assert line(figure, f"{label} family")[0] == [judged.wide_low, judged.wide_high]
    margin = artists(figure)["margin"]
    assert isinstance(margin, Rectangle)
    assert (margin.get_x(), margin.get_width()) == (-0.01, 0.02)


def test_a_bar_is_as_long_as_its_interval(report: Report) -> None:
    """A projecting cap would end past it, and might cross 0."""
    bars = [each for gid, each in artists(drawn(forest(report))).items() if "interval" in gid]
    assert bars
    assert {each.get_solid_capstyle() for each in bars if isinstance(each, Line2D)} == {"butt"}


def test_a_pooled_interval_has_ticks_beside_the_paired_one(tmp_path: Path) -> None:
    """Where nothing is pooled there are none."""
    losses_VS = 3.5 + np.random.default_rng(1).normal(scale=0.02, size=(4, 5))
    for pe, losses in zip(("qk_rope", "qkvo_rope", "vo_rope", "k_rope"), losses_VS, strict=True):
        for seed, loss in enumerate(losses):
            make_run(tmp_path, pe=pe, seed=seed, loss=float(loss))
    pooled = report_of(tmp_path)
    assert pooled.is_pooled
    figure = drawn(forest(pooled))
    judged = pooled.against["vo_rope"]
    assert line(figure, "vo_rope pooled")[0] == [judged.low, judged.high]
    assert any("ticks: the one by the pooled noise" in said for said in texts(figure))
    assert "vo_rope pooled" not in artists(drawn(forest(pooled.alone)))


def test_the_forest_says_verdict_seeds_and_published(report: Report) -> None:
    said = texts(drawn(forest(report)))
    own = report.alone.against["k_rope"]
    assert f"{own.delta:+.4f} [{own.low:+.4f}, {own.high:+.4f}]" in said
    assert {WORDS[each.verdict] for each in report.against.values()} <= set(said)
    assert {"untested", "diverged", "3", "1", "0"} <= set(said)
    assert f"{TABLE.losses['k_rope'] - TABLE.losses['qk_rope']:+.3f}" in said


def test_a_row_without_an_interval_has_a_dot_or_a_word(report: Report) -> None:
    shown = artists(drawn(forest(report)))
    assert "o_rope delta" in shown
    assert "o_rope interval" not in shown
    assert "v_rope delta" not in shown


def test_a_noisy_row_leaves_the_others_readable(report: Report) -> None:
    """Its interval runs out of the axes, and an arrow says so."""
    axes = drawn(forest(report)).axes[0]
    low, high = axes.get_xlim()
    judged = report.against["vo_rope"]
    assert judged.wide_low < low
    assert judged.wide_high > high
    assert {4, 5} <= {each.get_marker() for each in axes.lines}
    assert any("An arrow: it goes on." in said for said in texts(drawn(forest(report))))


def test_one_seed_has_dots_beside_the_published_and_no_interval(tmp_path: Path) -> None:
    for pe, loss in {"qk_rope": 3.5, "vo_rope": 3.53, "pe.rotate=[q,v]": 3.4}.items():
        make_run(tmp_path, pe=pe, loss=loss)
    figure = drawn(forest(report_of(tmp_path)))

    assert line(figure, "vo_rope delta")[0] == [pytest.approx(0.03)]
    published = TABLE.losses["vo_rope"] - TABLE.losses["qk_rope"]
    assert line(figure, "vo_rope published")[0] == [pytest.approx(published)]
    assert not {"vo_rope interval", "vo_rope family", "qv_rope published"} & set(artists(figure))
    assert any("nothing here can be tested" in each for each in texts(figure))
    assert not any("arrow" in each for each in texts(figure))


def test_what_nobody_published_has_no_column_for_it(tmp_path: Path) -> None:
    for name in ("published", "own"):
        make_run(tmp_path / name, pe="qk_rope", loss=3.5)
    make_run(tmp_path / "published", pe="nope", loss=3.6)
    make_run(tmp_path / "own", pe="pe.rotate=[q,v]", loss=3.4)
    assert "published" in texts(drawn(forest(report_of(tmp_path / "published"))))
    assert "published" not in texts(drawn(forest(report_of(tmp_path / "own"))))


def test_a_forest_needs_the_reference_and_a_row_beside_it(tmp_path: Path) -> None:
    make_run(tmp_path / "alone", loss=3.5)
    assert forest(report_of(tmp_path / "alone")) is None
    for pe in ("vo_rope", "nope"):
        make_run(tmp_path / "without", pe=pe)
    assert forest(report_of(tmp_path / "without")) is None


@pytest.fixture(scope="module")
def partly(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """Rows, and the reference, of whose seeds some diverged."""
    runs = tmp_path_factory.mktemp("partly")
    for pe, count in {"qk_rope": 3, "qkvo_rope": 4, "k_rope": 2, "vo_rope": 1}.items():
        for seed in range(4):
            loss = 3.5 + 0.1 * seed + 0.01 * len(pe) * (1 + 0.01 * (seed % 2))
            finished: dict[str, Any] = {"loss": loss}
            lost = {"loss": None, "steps": 100, "result": {"steps": 100}}
            make_run(runs, pe=pe, seed=seed, **(finished if seed < count else lost))
    return report_of(runs)


def test_a_verdict_says_how_many_runs_it_is_without(partly: Report) -> None:
    figure = drawn(forest(partly))
    said = texts(figure)
    word = WORDS[partly.against["k_rope"].verdict]
    assert f"{word} (2 diverged)" in said
    assert WORDS[partly.against["qkvo_rope"].verdict] in said
    assert "untested (3 diverged)" in said
    assert any("The reference: QK-RoPE (1 diverged)." in each for each in said)
    figure.draw_without_rendering()
    assert overlapping(figure, " word") == []


def test_a_cell_says_how_many_runs_it_is_without(partly: Report) -> None:
    said = texts(drawn(grid(partly)))
    word = WORDS[partly.against["k_rope"].verdict]
    assert any(each.startswith("± ") and each.endswith(f"{word} (2 diverged)") for each in said)
    assert "reference (1 diverged)" in said
    assert "(3 diverged)" in said


def test_the_margin_alone_makes_no_row_equivalent(report: Report) -> None:
    said = texts(drawn(forest(report)))
    assert any("equivalent where the test shows" in each for each in said)
    assert not any("count as equal" in each for each in said)


# -- the grid --------------------------------------------------------------------------------------


def text(figure: Figure, gid: str) -> Text:
    found = artists(figure)[gid]
    assert isinstance(found, Text)
    return found


def test_a_cell_holds_its_difference_and_the_published(report: Report) -> None:
    figure = drawn(grid(report))
    for label in ("qkvo_rope", "vo_rope", "k_rope", "o_rope", "qv_rope"):
        delta = report.rows[label].ours.delta
        assert text(figure, f"{label} delta").get_text() == f"{delta:+.4f}"
        published = report.rows[label].theirs.delta
        if published is None:
            assert f"{label} published" not in artists(figure)
        else:
            assert text(figure, f"{label} published").get_text() == f"{published:+.3f}"
    assert text(figure, "qk_rope delta").get_text() == "0"


def test_a_cell_stands_where_its_sites_say(report: Report) -> None:
    """Rows from the top: none, Q, K, QK; columns: none, V, O, VO."""
    figure = drawn(grid(report))
    assert figure.axes[0].yaxis_inverted()
    places = {"vo_rope": (3, 0), "k_rope": (0, 2), "qv_rope": (1, 1), "qkvo_rope": (3, 3)}
    for label, (column, row) in places.items():
        x, y = text(figure, f"{label} delta").get_position()
        assert (int(x), int(y)) == (column, row)


def test_colours_diverge_at_0(report: Report) -> None:
    """A lower loss and an equally higher one are as far from white, in two hues."""
    mesh = artists(drawn(grid(report)))["cells"]
    assert isinstance(mesh, QuadMesh)
    low, high = mesh.get_clim()
    assert low == -high
    blue, white, red = mesh.cmap([0.0, 0.5, 1.0])[:, :3]
    assert min(white) > 0.95
    assert blue[2] > blue[0]
    assert red[0] > red[2]


def test_what_did_not_run_is_an_empty_cell(report: Report) -> None:
    figure = drawn(grid(report))
    hatched = [each for each in figure.axes[0].patches if each.get_hatch()]
    assert len(hatched) == 16 - len(report.rows)
    assert "diverged" in texts(figure)


def test_a_grid_needs_the_reference(tmp_path: Path) -> None:
    make_run(tmp_path, pe="vo_rope")
    assert grid(report_of(tmp_path)) is None
