"""Tests that figures of real records show numbers computed from these records by hand."""

from dataclasses import replace
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from scipy import stats
from support.charts import WIDEST, domain, explanation, records, width, words
from support.records import diverged, report_on, runs_of, unfinished

from rope_exp.figures.curves import figure as curves
from rope_exp.figures.distance import figure as distance
from rope_exp.figures.distance import levels, weights
from rope_exp.figures.forest import figure as forest
from rope_exp.figures.grid import figure as grid
from rope_exp.figures.probes import figure as probes
from rope_exp.figures.probes import points as probed
from rope_exp.figures.style import limits, svg_of
from rope_exp.report import Report, build


@pytest.fixture(scope="module")
def nine() -> Report:
    """Return the nine variants at eight seeds, whose test pools nothing."""
    return report_on("nine_26m")


def losses(campaign: str, row: str) -> np.ndarray:
    """Return a row's final losses, by seed."""
    found = {run.config.seed: run.loss for run in runs_of(campaign, row)}
    return np.array([found[seed] for seed in sorted(found)], dtype=float)


def minus(text: str) -> str:
    return text.replace("-", "−")


# -- differences -----------------------------------------------------------------------------------


def test_the_forest_draws_intervals_of_scipys_paired_t(nine: Report) -> None:
    chart = forest(nine)
    bars = {bar["label"]: bar for bar in records(chart, "delta_ci_low")}
    lines = {line["label"]: line for line in records(chart, "difference")}
    assert domain(chart, "label") == [label for label in nine.rows if label != "qk_rope"]
    for label in ("vo_rope", "nope", "v_rope"):
        test = stats.ttest_rel(losses("nine_26m", label), losses("nine_26m", "qk_rope"))
        for key, level in (("delta_ci", 0.95), ("delta_wide", 1 - 0.05 / 8)):
            drawn = [bars[label][f"{key}_{end}"] for end in ("low", "high")]
            assert drawn == pytest.approx([*test.confidence_interval(level)], abs=1e-9)
        assert lines[label]["seeds"] == "8"
    assert "Thick: 95 % interval of the paired t test" in explanation(chart)


def test_a_cell_of_the_grid_stands_where_its_sites_say(nine: Report) -> None:
    """Colours diverge at 0: equal differences of opposite sign are equally far from the middle."""
    chart = grid(nine)
    cells = {cell["label"]: cell for cell in records(chart, "scores")}
    places = {"vo_rope": ("", "VO"), "k_rope": ("K", ""), "qkv_rope": ("QK", "V")}
    base = losses("nine_26m", "qk_rope")
    for label, place in places.items():
        cell = cells[label]
        assert (cell["scores"], cell["values"]) == place
        assert cell["number"] == minus(f"{(losses('nine_26m', label) - base).mean():+.4f}")
    low, high = domain(chart, "delta")
    assert low == -high
    assert high == max(abs(cell["delta"] or 0) for cell in cells.values())


def test_curves_end_at_the_differences(nine: Report) -> None:
    """A band is one standard deviation of the differences over seeds."""
    spec = curves(nine).to_dict()
    layers = [layer for panel in spec["hconcat"] for layer in panel.get("layer", [])]
    [line] = [
        layer
        for layer in layers
        if layer.get("mark", {}).get("type") == "line"
        and "minus" in str(layer["encoding"]["y"]["title"])
    ]
    points = spec["datasets"][line["data"]["name"]]
    base = losses("nine_26m", "qk_rope")
    for label in ("vo_rope", "nope"):
        end = [point for point in points if point["label"] == label][-1]
        delta_S = losses("nine_26m", label) - base
        assert end["tokens"] == 6400 * 4096
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
    lines = {line["label"]: line for line in records(forest(report), "difference")}
    assert lines["vo_rope"]["seeds"] == "1 (2 diverged)"
    assert lines["vo_rope"]["verdict"] == "untested (2 diverged)"
    assert lines["v_rope"]["verdict"] == "diverged"
    assert "The reference: QK-RoPE (1 diverged)." in explanation(forest(report))

    below = {cell["label"]: cell["below"] for cell in records(grid(report), "scores")}
    assert below["qk_rope"] == "reference\n(1 diverged)"
    assert below["vo_rope"] == "untested\n(2 diverged)"
    assert "V-RoPE (diverged)" in words(curves(report))


def test_without_the_reference_there_are_only_losses() -> None:
    report = report_on("english", "vo_rope", "nope", seeds=(0,))
    assert forest(report) is None
    assert grid(report) is None
    assert "No differences: qk_rope has no runs here." in explanation(curves(report))


# -- answers to probes -----------------------------------------------------------------------------


def test_probes_are_differences_within_a_seed(nine: Report) -> None:
    """By position, a row is compared with the reference's run of the same seed."""
    found = probed(nine, "bins")
    drawn = found[found["label"] == "vo_rope"]["value"]
    by_seed = {
        row: {run.config.seed: run.probes["positions"]["loss"] for run in runs_of("nine_26m", row)}
        for row in ("vo_rope", "qk_rope")
    }
    deltas = [
        np.subtract(by_seed["vo_rope"][seed], by_seed["qk_rope"][seed])
        for seed in by_seed["qk_rope"]
    ]
    np.testing.assert_allclose(sorted(drawn), sorted(np.mean(deltas, axis=0)), atol=1e-9)

    found = probed(nine, "ablation")
    [cost] = found[(found["label"] == "vo_rope") & (found["place"] == "v")]["value"]
    answers = [run.probes["ablation"] for run in runs_of("nine_26m", "vo_rope")]
    costs = [each["loss"][each["without"].index("v")] - each["loss"][0] for each in answers]
    assert cost == pytest.approx(np.mean(costs))


def test_attention_by_distance_is_a_mean_over_layers() -> None:
    """The bound keeps its shape, at the level of uniform attention."""
    report = report_on("distance")
    [answer] = [run.probes["distance"] for run in runs_of("distance", "qk_rope")]
    found = weights(report)
    drawn = found[found["label"] == "qk_rope"]
    assert list(drawn["distance"]) == [m + 1 for m in answer["m"]]
    np.testing.assert_allclose(drawn["weight"], np.mean([*answer["attention"].values()], axis=0))

    lines = levels(report)
    bound = lines[lines["line"].str.startswith("bound")]["weight"].to_numpy()[: len(answer["m"])]
    np.testing.assert_allclose(bound / bound[0], np.divide(answer["bound"], answer["bound"][0]))
    assert bound.mean() == pytest.approx(np.mean(answer["uniform"]))


# -- files -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("campaign", "draws"),
    [
        ("english", (forest, grid, curves, probes)),
        ("distance", (distance,)),
    ],
)
def test_files_fit_a_page_and_hold_each_id_once(campaign: str, draws: Any) -> None:
    report = report_on(campaign)
    for draw in draws:
        chart = draw(report)
        assert width(chart) <= WIDEST
        svg = ElementTree.fromstring(svg_of(chart.to_dict()))
        defined = [each.attrib["id"] for each in svg.iter() if "id" in each.attrib]
        named = [text for each in svg.iter() for text in each.attrib.values() if "url(#" in text]
        assert len(defined) == len(set(defined))
        assert {text.partition("#")[2].rstrip(")") for text in named} <= set(defined)


def test_one_run_alone_leaves_out_what_it_cannot_show() -> None:
    assert {*report_on("english", "vo_rope", seeds=(0,)).charts} == {"curves", "probes"}
    begun = [replace(unfinished(run), probes={}) for run in runs_of("english", "nope", seeds=(0,))]
    assert build(begun, ["pe"]).charts == {}


def test_runs_in_any_order_give_the_same_bytes() -> None:
    runs = runs_of("english", "qk_rope", "vo_rope", "nope", seeds=(0, 1))
    charts = build(runs, ["pe"]).charts
    assert [*charts] == ["forest", "curves", "grid", "probes"]
    assert charts == build(runs[::-1], ["pe"]).charts


def test_limits_leave_the_means_readable_beside_a_wide_interval() -> None:
    """Means take at least half of the axis; a narrow interval is shown whole."""
    low, high = limits([0.1, 0.4], [-9.0, 9.0])
    assert (0.4 - 0.0) / (high - low) > 0.45
    low, high = limits([0.1, 0.4], [0.38, 0.42])
    assert low < 0 < 0.42 < high < 0.45
    low, high = limits([])
    assert low < -0.001 < 0.001 < high
