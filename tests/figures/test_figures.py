"""Tests of figures of real records against numbers computed by hand, and of their parts."""

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from xml.etree import ElementTree

import altair as alt
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from support.records import diverged, report_on, runs_of, unfinished

from rope_exp.figures import cached, curves, distance, forest, grid, probes
from rope_exp.figures._style import SITES_OF, limits, look, parts
from rope_exp.report import Report, build
from rope_exp.svg import drawn

# Up to this width, text of 11 pixels has at least 7 points when printed at 6.75 inches.
WIDEST = 11 / 7 * 72 * 6.75


def records(chart: Any, key: str) -> list[dict[str, Any]]:
    datasets = chart.to_dict()["datasets"].values()
    return next((lines for lines in datasets if lines and key in lines[0]), [])


def objects(spec: Any) -> Iterator[dict[str, Any]]:
    """Yield every object of a specification, at any depth."""
    if isinstance(spec, dict):
        yield spec
    for each in spec.values() if isinstance(spec, dict) else spec:
        if isinstance(each, dict | list):
            yield from objects(each)


def domain(chart: Any, field: str) -> list[Any]:
    """Return the first scale domain of a channel that encodes this field."""
    channels = (part for part in objects(chart.to_dict()) if part.get("field") == field)
    return [
        *next(part["scale"]["domain"] for part in channels if "domain" in part.get("scale", {}))
    ]


def explanation(chart: Any) -> str:
    return " ".join(chart.to_dict()["title"]["text"])


@pytest.fixture(scope="module")
def nine() -> Report:
    """Return the nine variants at three seeds."""
    return report_on("english")


def losses(report: Report, row: str) -> np.ndarray:
    """Return a row's final losses, by seed."""
    return np.array([run.loss for run in report.rows[row].runs], dtype=float)


def test_the_forest_draws_intervals_of_scipys_paired_t(nine: Report) -> None:
    chart = forest.figure(nine)
    bars = {bar["label"]: bar for bar in records(chart, "delta_ci_low")}
    lines = {line["label"]: line for line in records(chart, "difference")}
    assert domain(chart, "label") == [*nine.rows]
    assert lines["qk_rope"]["difference"] == "0 (reference)"
    assert lines["qk_rope"]["published_delta"] is None
    for label in ("vo_rope", "nope", "v_rope"):
        test = stats.ttest_rel(losses(nine, label), losses(nine, "qk_rope"))
        for key, level in (("delta_ci", 0.95), ("delta_wide", 1 - 0.05 / 8)):
            drawn = [bars[label][f"{key}_{end}"] for end in ("low", "high")]
            assert drawn == pytest.approx([*test.confidence_interval(level)], abs=1e-9)
        assert lines[label]["seeds"] == "3"
    assert "Thick: 95 % interval of the paired t test" in explanation(chart)


def test_a_cell_of_the_grid_stands_where_its_sites_say(nine: Report) -> None:
    """Colours diverge at 0: equal differences of opposite sign are equally far from the middle."""
    chart = grid.figure(nine)
    cells = {cell["label"]: cell for cell in records(chart, "scores")}
    places = {"vo_rope": ("", "VO"), "k_rope": ("K", ""), "qkv_rope": ("QK", "V")}
    base = losses(nine, "qk_rope")
    for label, (scores, values) in places.items():
        cell = cells[label]
        assert cell["scores"] == scores
        assert cell["values"] == values
        delta = f"{(losses(nine, label) - base).mean():+.4f}"
        assert cell["number"] == delta.replace("-", "−")
    low, high = domain(chart, "delta")
    assert low == -high
    assert high == max(abs(cell["delta"] or 0) for cell in cells.values())


def test_the_grid_names_rows_that_are_no_subset(nine: Report) -> None:
    """It once said of a class of one's own that it was not run."""
    wave = replace(nine.rows["nope"], label="wave", name="Wave")
    chart = grid.figure(replace(nine, rows={**nine.rows, "wave": wave}))
    assert chart is not None
    assert "Wave." in " ".join(chart.to_dict()["title"]["text"])
    alone = grid.figure(nine)
    assert alone is not None
    assert "Not a subset" not in " ".join(alone.to_dict()["title"]["text"])


def test_curves_end_at_the_differences(nine: Report) -> None:
    """A band is one standard deviation of the differences over seeds."""
    chart = curves.figure(nine)
    assert chart is not None
    [panel] = [panel for panel in chart.hconcat if isinstance(panel, alt.LayerChart)]
    # Below the line are the zero line and the band.
    points = panel.layer[2].data
    base = losses(nine, "qk_rope")
    for label in ("vo_rope", "nope"):
        end = points[points["label"] == label].iloc[-1]
        delta_S = losses(nine, label) - base
        assert end["tokens"] == 500 * 4096
        assert end["mean"] == pytest.approx(delta_S.mean(), abs=1e-6)
        assert end["high"] - end["mean"] == pytest.approx(delta_S.std(ddof=1), abs=1e-5)


def test_lost_runs_are_told_in_words() -> None:
    """A diverged run counts beside its row's seeds, hides no curve, and ends with a cross."""
    runs = runs_of("english", "qk_rope", "vo_rope", "nope", "v_rope", seeds=(0, 1, 2))
    lost = {("qk_rope", 2), ("vo_rope", 1), ("vo_rope", 2), ("nope", 0)}
    lost |= {("v_rope", seed) for seed in range(3)}
    report = build(
        [diverged(run) if (run.row, run.config.seed) in lost else run for run in runs], ["pe"]
    )
    lines = {line["label"]: line for line in records(forest.figure(report), "difference")}
    assert lines["vo_rope"]["seeds"] == "1 (2 diverged)"
    assert lines["vo_rope"]["verdict"] == "untested (2 diverged)"
    assert lines["v_rope"]["verdict"] == "diverged"
    assert "The reference: QK-RoPE (1 diverged)." in explanation(forest.figure(report))

    below = {cell["label"]: cell["below"] for cell in records(grid.figure(report), "scores")}
    assert below["qk_rope"] == "reference\n(1 diverged)"
    assert below["vo_rope"] == "untested\n(2 diverged)"
    assert ">V-RoPE (diverged)</text>" in str(drawn(curves.figure, report))


def test_probes_are_differences_within_a_seed(nine: Report) -> None:
    """By position, a row is compared with the reference's runs of the same seeds."""
    runs, base = (nine.rows[row].runs for row in ("vo_rope", "qk_rope"))
    of_runs, of_base = (
        np.mean([run.probes["positions"]["loss"] for run in each], axis=0) for each in (runs, base)
    )
    found = probes.points(nine, "bins").set_index("label").loc["vo_rope"]
    np.testing.assert_allclose(found["value"], of_runs - of_base, atol=1e-9)

    found = probes.points(nine, "ablation").set_index(["label", "place"])
    answers = [run.probes["ablation"] for run in runs]
    costs = [each["loss"][each["without"].index("v")] - each["loss"][0] for each in answers]
    assert found.at[("vo_rope", "v"), "value"] == pytest.approx(np.mean(costs))


def test_attention_by_distance_is_a_mean_over_layers() -> None:
    """The bound keeps its shape, at the level of uniform attention."""
    report = report_on("distance")
    [answer] = report.answers("distance")["qk_rope"]
    drawn = distance.weights(report).set_index("label").loc["qk_rope"]
    assert list(drawn["distance"]) == [m + 1 for m in answer["m"]]
    np.testing.assert_allclose(drawn["weight"], np.mean([*answer["attention"].values()], axis=0))

    bounds = distance.levels(report).query("line.str.startswith('bound')")["weight"]
    bound = bounds.to_numpy()[: len(answer["m"])]
    np.testing.assert_allclose(bound / bound[0], np.divide(answer["bound"], answer["bound"][0]))
    assert bound.mean() == pytest.approx(np.mean(answer["uniform"]))


@pytest.mark.parametrize("campaign", ["english", "distance"])
def test_files_fit_a_page_and_hold_each_id_once(campaign: str) -> None:
    for module in (forest, grid, curves, probes, distance):
        if (file := drawn(module.figure, report_on(campaign))) is None:
            continue
        svg = ElementTree.fromstring(file)
        assert float(svg.attrib["width"]) <= WIDEST
        defined = [each.attrib["id"] for each in svg.iter() if "id" in each.attrib]
        named = {text for each in svg.iter() for text in each.attrib.values() if "url(#" in text}
        assert len(defined) == len(set(defined))
        assert named <= {f"url(#{name})" for name in defined}


def test_one_run_alone_leaves_out_what_it_cannot_show() -> None:
    report = report_on("english", "vo_rope", seeds=(0,))
    assert {*report.charts} == {"curves", "probes"}
    assert "No differences: qk_rope has no runs here." in explanation(curves.figure(report))
    begun = [replace(unfinished(run), probes={}) for run in runs_of("english", "nope", seeds=(0,))]
    assert build(begun, ["pe"]).charts == {}


def test_runs_in_any_order_give_the_same_bytes() -> None:
    runs = runs_of("english", "qk_rope", "vo_rope", "nope", seeds=(0, 1))
    charts = build(runs, ["pe"]).charts
    assert [*charts] == ["forest", "curves", "grid", "probes"]
    assert charts == build(runs[::-1], ["pe"]).charts


def test_all_sixteen_subsets_look_different_in_grey() -> None:
    """Fill and hue show which of Q and K rotate; dash and outline, which of V and O."""
    looks = {parts(label): look(label) for label in SITES_OF}
    seen = {(style["filled"], style["outline"], str(style["dash"])) for style in looks.values()}
    assert len(looks) == 16
    assert len(seen) == 16
    for (a, one), (b, other) in itertools.combinations(looks.items(), 2):
        assert (one["color"] == other["color"]) == (a[0] == b[0])
        assert (one["dash"] == other["dash"]) == (a[1] == b[1])


def test_rows_of_another_factor_look_different() -> None:
    """Looks follow the row's place, since hashes could give two rows of a figure one colour."""
    looks = [look(f"optim.lr={number}", number) for number in range(9)]
    assert len({one["color"] for one in looks}) == 9
    assert len({one["outline"] for one in looks}) == 9


def test_limits_leave_the_means_readable_beside_a_wide_interval() -> None:
    """Means take at least half of the axis; a narrow interval is shown whole."""
    low, high = limits([0.1, 0.4], [-9.0, 9.0])
    assert (0.4 - 0.0) / (high - low) > 0.45
    low, high = limits([0.1, 0.4], [0.38, 0.42])
    assert low < 0 < 0.42 < high < 0.45
    low, high = limits([])
    assert low < -0.001 < 0.001 < high


@given(st.lists(st.floats(0, 1), min_size=1, max_size=16))
def test_names_keep_their_gap_their_order_and_the_axes(wanted: list[float]) -> None:
    placed = curves.spread(pd.Series(wanted), 0.06, 0, 1)
    ordered = placed.sort_index().iloc[np.argsort(wanted, kind="stable")]
    assert ordered.diff().fillna(1).min() >= 0.06 - 1e-9
    assert -1e-9 <= placed.min() <= placed.max() <= 1 + 1e-9


@given(st.lists(st.tuples(st.integers(1, 8), st.integers(-8, 8)), min_size=1))
def test_the_front_is_what_nothing_dominates(points: list[tuple[int, int]]) -> None:
    """By definition, a point dominates if neither bytes nor loss is larger, and one is smaller."""
    best = cached.front(pd.DataFrame(points, columns=["num_bytes", "delta"], dtype=float))
    expected = sorted(
        {
            point
            for point in points
            if not any(
                other[0] <= point[0] and other[1] <= point[1] and other != point for other in points
            )
        }
    )
    assert [*best.itertuples(index=False, name=None)] == expected
