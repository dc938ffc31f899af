"""Tests of the tables and sentences about finished models' answers to probes."""

import csv
import io
from dataclasses import replace
from pathlib import Path
from statistics import stdev
from typing import Any

import pytest
from support.records import make_records, nine_losses

from rope_exp.evidence.records import read_records
from rope_exp.evidence.runs import Run
from rope_exp.report.command import write_campaigns
from rope_exp.report.content import build
from rope_exp.report.probed import (
    copies_part,
    drift_notes,
    extension_csv,
    extension_part,
    probes_csv,
    shift_notes,
)

ROWS = {
    "qk": ["pe=qk_rope", "row_name=QK"],
    "vo": ["pe=vo_rope", "row_name=VO"],
    "qkvo": ["pe=qkvo_rope", "row_name=QKVO"],
    "none": ["pe=nope", "row_name=none"],
    "raw": ["pe=qk_rope", "pe.trainable=true", "row_name=raw"],
    "log": ["pe=qkvo_rope", "pe.trainable=log", "pe.trainable_scope=layer", "row_name=log"],
}
ASKED = {
    "qk": ["distance", "extension"],
    "vo": ["distance", "extension"],
    "qkvo": ["distance", "extension"],
    "none": ["distance"],
    "raw": ["drift", "distance"],
    "log": ["drift"],
}


def loss(row: str, seed: int) -> float:
    return nine_losses("qk_rope", seed) + 0.01 * len(row)


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Path:
    records = tmp_path_factory.mktemp("records")
    make_records(records, "asked", rows=ROWS, seeds=(0, 1, 2), loss=loss, asked=ASKED)
    return records


@pytest.fixture(scope="module")
def runs(records: Path) -> list[Run]:
    return read_records(records, "asked")


def test_a_campaign_that_asks_gets_figures_table_and_words(records: Path, tmp_path: Path) -> None:
    write_campaigns(records, "asked", tmp_path)
    folder = tmp_path / "asked"
    drawn = {path.stem for path in (folder / "figures").glob("*.svg")}
    assert drawn >= {"distance", "kappa-0", "kappa-2", "kappa-3", "extension", "drift", "probes"}

    text = (folder / "table.md").read_text(encoding="utf-8")
    for name in ("distance", "kappa-0", "extension", "drift"):
        assert f"![{name}](figures/{name}.svg)" in text
    assert "| QKVO | YaRN | q, k, v and o | 3 |" in text
    assert "raw: learned frequencies moved by a median |ln(θ/θ₀)| of" in text
    assert (folder / "extension.csv").exists()


def test_the_table_of_lengths_holds_means_over_seeds(runs: list[Run]) -> None:
    report = build(runs, ["row"])
    text = extension_csv(report)
    assert text is not None
    lines = list(csv.DictReader(io.StringIO(text)))
    # At each length: as trained, and three methods for one target (QK, VO) or three (QKVO).
    assert len(lines) == 4 * (4 + 4 + 10)
    (line,) = [
        line
        for line in lines
        if (line["row"], line["method"], line["sites"], line["length"])
        == (label_of(report, "QKVO"), "yarn", "vo", "1024")
    ]
    losses = [loss("qkvo", seed) + 0.05 * 2 / 1.5 for seed in range(3)]
    assert float(line["loss_mean"]) == pytest.approx(sum(losses) / 3, abs=1e-6)
    assert line["num_seeds"] == "3"

    sentence, table = extension_part(report)
    header, _, first, *_ = table.splitlines()
    assert header == "| row | frequencies | sites | seeds | 1× | 2× | 4× | 8× |"
    assert first.split(" | ")[1:4] == ["as trained", "—", "3"]
    assert sentence.endswith(":")


def label_of(report: Any, name: str) -> str:
    return next(label for label, row in report.rows.items() if row.name == name)


def moved(runs: list[Run], row: str, *medians: float, **more: Any) -> list[Run]:
    """Return runs of one row, whose learned frequencies have moved by these medians."""
    found = [run for run in runs if run.row == row][: len(medians)]
    return [
        replace(run, probes={"drift": {"sites": {"qk": {"median": median, **more}}}})
        for run, median in zip(found, medians, strict=True)
    ]


def test_probes_stand_by_place_as_means_over_seeds(tmp_path: Path) -> None:
    make_records(tmp_path, "nine", rows=("qk_rope", "nope"), seeds=(0, 1, 2))
    text = probes_csv(build(read_records(tmp_path, "nine"), ["pe"]))
    assert text is not None
    lines = list(csv.DictReader(io.StringIO(text)))
    at = {(line["row"], line["probe"], line["at"]): line for line in lines}

    losses = [nine_losses("qk_rope", seed) for seed in range(3)]
    long = at["qk_rope", "positions", "2048"]
    assert float(long["mean"]) == pytest.approx(sum(losses) / 3 + 0.2, abs=1e-6)
    assert float(long["sd"]) == pytest.approx(stdev(losses), abs=1e-6)
    assert long["num_seeds"] == "3"
    first = at["qk_rope", "bins", "0"]
    assert float(first["mean"]) == pytest.approx(sum(losses) / 3 + 2.0, abs=1e-6)
    assert "2048" not in {place for _, probe, place in at if probe == "bins"}
    assert float(at["qk_rope", "ablation", "k"]["mean"]) > float(long["mean"])
    assert ("nope", "ablation", "k") not in at
    assert {probe for _, probe, _ in at} == {"positions", "bins", "shift", "ablation"}


def test_attention_by_distance_is_the_mean_of_layers(runs: list[Run]) -> None:
    """The run's two layers weigh the previous key by 0.1 and 0.3, which averages to 0.2."""
    answer = {"m": [0, 1], "attention": {"0": [0.2, 0.1], "1": [0.4, 0.3]}, "uniform": [0.5, 0.25]}
    [run] = [run for run in runs if (run.row, run.config.seed) == ("qk", 0)]
    text = probes_csv(build([replace(run, probes={"distance": answer})], ["row"]))
    assert text is not None
    lines = list(csv.DictReader(io.StringIO(text)))
    found = {(line["probe"], line["at"]): float(line["mean"]) for line in lines}
    assert found == {
        ("distance", "0"): pytest.approx(0.3),
        ("distance", "1"): pytest.approx(0.2),
        ("uniform", "0"): 0.5,
        ("uniform", "1"): 0.25,
    }


def test_runs_that_were_asked_nothing_have_no_such_table(runs: list[Run]) -> None:
    assert probes_csv(build([replace(run, probes={}) for run in runs], ["row"])) is None


def test_runs_that_copy_are_counted_with_their_losses(runs: list[Run]) -> None:
    """The second reading gains 0.4, 0.2 and 2 nats, so two of the three runs copy."""
    readings = {0: [4.0, 3.6], 1: [4.0, 3.8], 2: [4.0, 2.0]}
    probed = [
        replace(run, probes={"repeat": {"reading": [1, 2], "loss": readings[run.config.seed]}})
        for run in runs
        if run.row == "qk"
    ]
    sentence, table = copies_part(build(probed, ["row"]))
    copying, other = (loss("qk", 0) + loss("qk", 2)) / 2, loss("qk", 1)
    assert "at least 0.3 nats" in sentence
    assert table.splitlines()[-1] == f"| QK | 2 of 3 | 0.8667 | {copying:.4f} | {other:.4f} |"

    table = copies_part(build([probed[1]], ["row"]))[1]
    assert table.splitlines()[-1] == f"| QK | 0 of 1 | 0.2000 | — | {other:.4f} |"


def test_token_shift_is_told_by_layer(runs: list[Run]) -> None:
    probed = [
        replace(run, probes={"token_shift": {"mean": [0.5 + run.config.seed, 0.25]}})
        for run in runs
        if run.row == "qk"
    ]
    said = shift_notes(build(probed, ["row"]))
    assert said == ["QK: mean μ of token shift by layer is 1.500, 0.250."]


@pytest.mark.parametrize(
    ("medians", "more", "said"),
    [
        ((0.05,), {}, "0.05 for q and k (one seed, below 0.1)."),
        ((0.25,), {"crossings": 0}, "(one seed, not below 0.1; 0 was never crossed)."),
        (
            (0.05, 0.07, 0.09),
            {},
            "0.07 for q and k (0.05 to 0.09 over 3 seeds, below 0.1 in every seed).",
        ),
        (
            (0.05, 0.1, 0.2),
            {},
            "0.117 for q and k (0.05 to 0.2 over 3 seeds, below 0.1 in 1 of them).",
        ),
        ((0.3, 0.2), {"crossings": 600}, "0.1 in no seed; 0 was crossed 1,200 times)."),
    ],
)
def test_drift_is_judged_seed_by_seed(
    runs: list[Run], medians: tuple[float, ...], more: dict[str, Any], said: str
) -> None:
    (sentence,) = drift_notes(build(moved(runs, "raw", *medians, **more), ["row"]))
    assert sentence.startswith("raw: learned frequencies moved by a median |ln(θ/θ₀)| of ")
    assert sentence.endswith(said)


def test_each_pair_of_sites_has_its_words(runs: list[Run]) -> None:
    both = drift_notes(build([run for run in runs if run.row == "log"], ["row"]))[0]
    assert both.index("for q and k (") < both.index(" and 0.") < both.index("for v and o (")


def test_where_nobody_asked_nothing_is_said(runs: list[Run]) -> None:
    report = build([replace(run, probes={}) for run in runs], ["row"])
    assert extension_csv(report) is None
    assert extension_part(report) == []
    assert drift_notes(report) == []
    assert copies_part(report) == []
    assert shift_notes(report) == []
