"""Panels of what finished models said."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.figures import artists, line, texts
from support.records import make_records, nine_losses

from rope_exp.evidence.records import read_records
from rope_exp.evidence.runs import Run
from rope_exp.report.content import build
from rope_exp.report.paper.probes import probes


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    records = tmp_path_factory.mktemp("records")
    make_records(records, "c", rows=("qk_rope", "qkv_rope", "nope"), seeds=(0, 1))
    return read_records(records, "c")


def test_panels_hold_the_means_over_seeds(runs: list[Run]) -> None:
    figure = probes(build(runs, ["pe"]))
    assert figure is not None
    for label in ("qk_rope", "qkv_rope"):
        loss = np.mean([nine_losses(label, seed) for seed in (0, 1)])
        reference = np.mean([nine_losses("qk_rope", seed) for seed in (0, 1)])
        at_length = line(figure, f"{label} length")
        np.testing.assert_allclose(at_length[0], [1, 2, 4, 8])
        np.testing.assert_allclose(at_length[1], loss + np.array([0, 0.01, 0.05, 0.2]))
        by_position = line(figure, f"{label} position")[1]
        np.testing.assert_allclose(by_position, loss - reference, atol=1e-9)
        cost = 0.1 * (label == "qkv_rope") * np.arange(5)
        np.testing.assert_allclose(line(figure, f"{label} shift")[1], cost, atol=1e-9)
        assert line(figure, f"{label} without q")[1] == pytest.approx([0.3])
    assert "nope without q" not in artists(figure)
    assert "qk_rope without v" not in artists(figure)


def test_runs_without_some_probes_are_drawn_by_the_others(runs: list[Run]) -> None:
    kept = {"shift": runs[0].probes["shift"]}
    partly = [replace(run, probes=kept if run.config.seed else {}) for run in runs]
    figure = probes(build(partly, ["pe"]))
    assert figure is not None
    assert "qk_rope shift" in artists(figure)
    assert "qk_rope length" not in artists(figure)
    # Nor is there a panel of what nobody was asked.
    assert len(figure.axes) == 1
    assert any("cannot tell where positions begin" in text for text in texts(figure))
    assert not any("By position" in text for text in texts(figure))


def test_without_probes_there_is_no_figure(runs: list[Run]) -> None:
    assert probes(build([replace(run, probes={}) for run in runs], ["pe"])) is None


def test_without_the_reference_losses_by_position_are_absolute(runs: list[Run]) -> None:
    others = [run for run in runs if run.config.pe.label != "qk_rope"]
    figure = probes(build(others, ["pe"]))
    assert figure is not None
    assert min(line(figure, "nope position")[1]) > 3


def test_differences_by_position_are_within_a_seed(tmp_path: Path) -> None:
    """The reference has a seed more: at another level, it would shift a difference of means."""

    def level(row: str, seed: int) -> float:
        return nine_losses(row, seed) + (seed == 2)

    make_records(tmp_path, "c", rows=("qk_rope", "nope"), seeds=(0, 1), loss=level)
    make_records(tmp_path, "c", rows=("qk_rope",), seeds=(2,), loss=level)
    make_records(tmp_path, "c", rows=("vo_rope",), seeds=(3,), loss=level)
    figure = probes(build(read_records(tmp_path, "c"), ["pe"]))
    assert figure is not None

    differences = [nine_losses("nope", seed) - nine_losses("qk_rope", seed) for seed in (0, 1)]
    heights = line(figure, "nope position")[1]
    np.testing.assert_allclose(heights, np.mean(differences), atol=1e-9)
    # It shares no seed with the reference.
    assert "vo_rope position" not in artists(figure)
    assert "vo_rope length" in artists(figure)
