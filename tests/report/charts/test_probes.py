"""Tests of the panels of finished models' probes."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.records import make_records, nine_losses

from rope_exp.evidence.records import read_records
from rope_exp.evidence.runs import Run
from rope_exp.report.charts.probes import points, probes
from rope_exp.report.content import Report, build


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    records = tmp_path_factory.mktemp("records")
    make_records(records, "c", rows=("qk_rope", "qkv_rope", "nope"), seeds=(0, 1))
    return read_records(records, "c")


def values(report: Report, probe: str, label: str) -> dict[Any, float]:
    """Return a row's values by place."""
    table = points(report, probe)
    of_row = table[table["label"] == label]
    return dict(zip(of_row["place"], of_row["value"], strict=True))


def test_panels_hold_the_means_over_seeds(runs: list[Run]) -> None:
    report = build(runs, ["pe"])
    reference = np.mean([nine_losses("qk_rope", seed) for seed in (0, 1)])
    for label in ("qk_rope", "qkv_rope"):
        loss = np.mean([nine_losses(label, seed) for seed in (0, 1)])
        window = values(report, "window", label)
        trained = report.runs[0].config.train.seq_len
        assert list(window) == [trained * multiple for multiple in (1, 2, 4, 8)]
        assert list(window.values()) == pytest.approx(loss + np.array([0, 0.01, 0.05, 0.2]))

        by_position = list(values(report, "position", label).values())
        np.testing.assert_allclose(by_position, loss - reference, atol=1e-9)
        cost = 0.1 * (label == "qkv_rope") * np.arange(5)
        np.testing.assert_allclose(list(values(report, "shift", label).values()), cost, atol=1e-9)
        assert values(report, "ablation", label)["q"] == pytest.approx(0.3)
    assert "q" not in values(report, "ablation", "nope")
    assert "v" not in values(report, "ablation", "qk_rope")


def test_each_probe_is_a_column(runs: list[Run]) -> None:
    chart = probes(build(runs, ["pe"]))
    assert chart is not None
    spec = chart.to_dict()
    assert [column["title"] for column in spec["hconcat"]] == [
        "loss by position, minus QK-RoPE's",
        "loss over whole windows",
        "added loss, shifted start",
        "added loss, ablated site",
    ]
    for column in spec["hconcat"]:
        drawn = {row["panel"] for row in spec["datasets"][column["data"]["name"]]}
        assert drawn == {"QK-RoPE", "QKV-RoPE", "NoPE"}


def test_runs_without_some_probes_are_drawn_by_the_others(runs: list[Run]) -> None:
    kept = {"shift": runs[0].probes["shift"]}
    partly = [replace(run, probes=kept if run.config.seed else {}) for run in runs]
    report = build(partly, ["pe"])
    assert len(points(report, "shift"))
    assert points(report, "window").empty
    # There is no column without answers.
    chart = probes(report)
    assert chart is not None
    spec = chart.to_dict()
    [column] = spec["hconcat"]
    assert column["title"] == "added loss, shifted start"
    said = " ".join(spec["title"]["text"])
    assert "do not depend on the first position" in said
    assert "By position" not in said


def test_without_probes_there_is_no_figure(runs: list[Run]) -> None:
    assert probes(build([replace(run, probes={}) for run in runs], ["pe"])) is None


def test_without_the_reference_losses_by_position_are_absolute(runs: list[Run]) -> None:
    others = [run for run in runs if run.config.pe.label != "qk_rope"]
    assert min(values(build(others, ["pe"]), "position", "nope").values()) > 3


def test_differences_by_position_are_within_a_seed(tmp_path: Path) -> None:
    """The reference has an extra seed at another level, which would shift a difference of means."""

    def level(row: str, seed: int) -> float:
        return nine_losses(row, seed) + (seed == 2)

    make_records(tmp_path, "c", rows=("qk_rope", "nope"), seeds=(0, 1), loss=level)
    make_records(tmp_path, "c", rows=("qk_rope",), seeds=(2,), loss=level)
    make_records(tmp_path, "c", rows=("vo_rope",), seeds=(3,), loss=level)
    report = build(read_records(tmp_path, "c"), ["pe"])

    differences = [nine_losses("nope", seed) - nine_losses("qk_rope", seed) for seed in (0, 1)]
    heights = list(values(report, "position", "nope").values())
    np.testing.assert_allclose(heights, np.mean(differences), atol=1e-9)
    # VO shares no seed with the reference.
    assert not values(report, "position", "vo_rope")
    assert values(report, "window", "vo_rope")


def test_losses_on_other_windows_are_not_subtracted(runs: list[Run]) -> None:
    """Learned positions end at the training length, so their windows are shorter and others."""
    shorter = []
    for run in runs:
        asked = run.probes["positions"]
        if run.config.pe.label == "nope":
            asked = {**asked, "edges": asked["edges"][:5], "loss": asked["loss"][:4]}
        shorter.append(replace(run, probes={**run.probes, "positions": asked}))
    report = build(shorter, ["pe"])
    assert values(report, "position", "nope") == {}
    assert values(report, "position", "qkv_rope")


def test_a_reference_without_answers_is_not_subtracted(runs: list[Run]) -> None:
    """The titles and sentences then speak of losses alone."""
    bare = [replace(run, probes={}) if run.config.pe.label == "qk_rope" else run for run in runs]
    chart = probes(build(bare, ["pe"]))
    assert chart is not None
    spec = chart.to_dict()
    assert spec["hconcat"][0]["title"] == "loss by position"
    assert "Grey" not in str(spec["title"])
