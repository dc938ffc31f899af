"""Tests of exact matches and R² in tables and a figure, against the numbers given to the runs."""

import csv
import io
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.charts import words
from support.records import ENV, make_records
from support.reports import sha256_of

from rope_exp.evidence.records import read_records
from rope_exp.report import gather
from rope_exp.report.answers import answers_csv, match_relations, parts, shares, task_tables
from rope_exp.report.assumptions import assumptions
from rope_exp.report.charts.answers import answers as figure_of
from rope_exp.report.charts.answers import points
from rope_exp.report.content import Report, build
from rope_exp.report.page_settings import answers
from rope_exp.report.sentences import caption, notes, summary
from rope_exp.report.tables import markdown

SEEDS = (0, 1, 2, 3, 4)
ROWS = ("qk_rope", "qkvo_rope", "vo_rope", "nope")
# The share of examples that each row answers right at span 0; it falls by 0.02 per span.
LEVELS = {"qk_rope": 0.7, "qkvo_rope": 0.9, "vo_rope": 0.8, "nope": 0.5}
COUNT = 1000
SPANS = {"addition": {"test": range(1, 7), "longer": range(7, 11)}}
SPANS["copy"] = {"test": range(1, 33), "longer": range(33, 65)}
SPANS["retrieval"] = {"test": range(4, 128)}
SPANS["repeats"] = {"test": range(17, 64)}

Level = Callable[[str, int, int], float]


def level_of(row: str, seed: int, span: int) -> float:
    """Return the share that a row answers right, with noise by seed and by row within a seed."""
    return max(0.0, LEVELS[row] - 0.02 * span + 0.004 * seed + 0.003 * ((seed * len(row)) % 3))


def answered(kind: str, row: str, seed: int, level: Level = level_of) -> dict[str, Any]:
    found = {}
    for split, spans in SPANS[kind].items():
        right = [round(COUNT * level(row, seed, span)) for span in spans]
        count = [COUNT] * len(spans)
        found[split] = {"span": list(spans), "count": count, "right": right, "loss": 1.0}
    return {"answers": found}


def make_report(
    folder: Path, kind: str, rows: Sequence[str] = ROWS, seeds: Sequence[int] = SEEDS
) -> Report:
    """Return the report of a campaign on one kind of data."""
    make_records(
        folder,
        kind,
        rows={row: [f"pe={row}", f"data={kind}"] for row in rows},
        seeds=seeds,
        loss=lambda row, seed: 2.0 - LEVELS[row] + 0.002 * ((seed * len(row)) % 3),
        probes=("answers",),
        answers=lambda row, seed, _: answered(kind, row, seed),
        env=ENV | {"corpus": {"name": kind, "kind": kind, "version": 1}},
    )
    return build(read_records(folder, kind), ["pe"])


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """Return four rows and five seeds on addition; no test changes it."""
    return make_report(tmp_path_factory.mktemp("records"), "addition")


def with_levels(report: Report, level: Level) -> Report:
    """Return the report of the same runs with these shares of right answers."""
    runs = [
        replace(run, probes=answered("addition", run.config.pe.label, run.config.seed, level))
        for run in report.runs
    ]
    return build(runs, ["pe"])


# -- shares ----------------------------------------------------------------------------------------


def test_a_share_is_of_the_examples_of_its_bin(tmp_path: Path) -> None:
    report = make_report(tmp_path, "copy", rows=["qk_rope"], seeds=[0, 1])
    assert [(part.first, part.last) for part in parts(report) if part.split == "test"] == [
        (1, 32), (1, 1), (2, 2), (3, 4), (5, 8), (9, 16), (17, 32),
    ]  # fmt: skip
    longer = [part.name for part in parts(report) if part.split == "longer"]
    assert longer == ["", "33 to 48", "49 to 64"]

    found = shares(report).set_index(["key", "seed"])["share"]["test 5 to 8"]
    assert set(found.index) == {0, 1}
    for seed, share in found.items():
        right = [round(COUNT * level_of("qk_rope", seed, span)) for span in range(5, 9)]
        assert share == pytest.approx(sum(right) / (4 * COUNT))


def test_bins_of_distance_are_octaves(tmp_path: Path) -> None:
    report = make_report(tmp_path, "retrieval", rows=["qk_rope"], seeds=[0])
    names = [part.name for part in parts(report) if part.split == "test"]
    assert names[1:] == ["4 to 7", "8 to 15", "16 to 31", "32 to 63", "64 to 127"]


# -- tables and published relations ----------------------------------------------------------------


def test_the_table_has_a_column_a_bin(report: Report) -> None:
    said = "\n".join(task_tables(report)).splitlines()
    assert "by digits of the longer number" in said[0]
    assert said[1] == "| variant | seeds | test | 1 | 2 | 3 | 4 | 5 | 6 | longer | 7 | 8 | 9 | 10 |"
    [line_of_qk] = [text for text in said if text.startswith("| QK-RoPE | 5 |")]
    cells = [cell.strip() for cell in line_of_qk.strip("|").split("|")]
    means = []
    for span in range(1, 11):
        counts = [round(COUNT * level_of("qk_rope", seed, span)) for seed in SEEDS]
        means.append(f"{100 * sum(counts) / len(counts) / COUNT:.1f}")
    assert cells[3:9] == means[:6]
    assert cells[10:] == means[6:]
    assert " ± " in cells[2]
    assert "\n".join(task_tables(report)) in markdown(report).replace("\n\n", "\n")


def test_the_csv_has_the_same_numbers(report: Report) -> None:
    lines = list(csv.DictReader(io.StringIO(answers_csv(report) or "")))
    assert len(lines) == 4 * (1 + 6 + 1 + 4)
    [whole] = [
        each
        for each in lines
        if (each["pe"], each["split"], each["span_first"], each["span_last"])
        == ("nope", "longer", "7", "10")
    ]
    expected = [
        sum(round(COUNT * level_of("nope", seed, span)) for span in range(7, 11)) / (4 * COUNT)
        for seed in SEEDS
    ]
    assert float(whole["right_mean"]) == pytest.approx(sum(expected) / 5, abs=1e-6)
    assert (whole["num_seeds"], whole["num_examples"]) == ("5", str(5 * 4 * COUNT))


@pytest.mark.parametrize(
    ("levels", "outcome"),
    [
        ((0.7, 0.9), "confirmed"),
        ((0.9, 0.7), "contradicted"),
        ((1.0, 1.0), "open; floor or ceiling effect"),
        ((0.0, 0.0), "open; floor or ceiling effect"),
    ],
)
def test_ropers_claim_is_judged_by_matches(
    report: Report, levels: tuple[float, float], outcome: str
) -> None:
    """QKVO > QK is judged by the share of wrong answers, and is open if none or all are right."""
    fixed = dict(zip(("qk_rope", "qkvo_rope"), levels, strict=True))

    def level(row: str, seed: int, span: int) -> float:
        noise = 0.004 * ((seed * len(row)) % 3)
        return min(1.0, max(0.0, fixed.get(row, 0.5) + (noise if 0 < fixed.get(row, 1) < 1 else 0)))

    report = with_levels(report, level)
    for relations in match_relations(report).values():
        [relation] = relations
        assert (relation.judged.a, relation.published, relation.judged.b) == (
            "qkvo_rope", ">", "qk_rope",
        )  # fmt: skip
        assert relation.outcome == outcome
    assert outcome in "\n".join(task_tables(report))


def test_a_task_without_mistakes_opens_both_measures(report: Report) -> None:
    """If all answers are right, the verdict by losses is open too; if none is, it stays."""
    assert [relation.outcome for relation in report.relations] == ["confirmed"]
    for share, outcome in ((1.0, "open; the task is too easy"), (0.0, "confirmed")):
        found = with_levels(report, lambda row, seed, span, share=share: share)
        assert [relation.outcome for relation in found.relations] == [outcome]
        assert f"| {outcome} |" in markdown(found)


def test_one_seed_judges_nothing(report: Report) -> None:
    report = build([run for run in report.runs if run.config.seed == 0], ["pe"])
    assert match_relations(report) == {"test": [], "longer": []}
    assert "published relations" not in "\n".join(task_tables(report))
    assert "±" not in "\n".join(task_tables(report))


def test_the_claim_is_judged_by_losses_too(report: Report, tmp_path: Path) -> None:
    """The published losses of language models do not apply to addition, and are not shown."""
    assert report.published is None
    [relation] = report.relations
    assert (relation.judged.a, relation.judged.b) == ("qkvo_rope", "qk_rope")
    assert relation.outcome == "confirmed"
    text = markdown(report)
    assert "published loss" not in text
    assert "QKVO-RoPE > QK-RoPE" in text
    assert any("Harik" in note for note in notes(report))
    retrieval = make_report(tmp_path, "retrieval", rows=ROWS[:2], seeds=[0])
    assert (retrieval.source, list(retrieval.relations)) == (None, [])


def test_repeats_stand_beside_the_losses_of_the_notebook(tmp_path: Path) -> None:
    """The report has the notebook's losses (RoPE 0.330, RoPER 0.319), relation and setting."""
    report = make_report(tmp_path, "repeats", rows=ROWS[:2])
    assert report.source is report.published
    assert report.rows["qkvo_rope"].theirs.delta == pytest.approx(-0.011)
    assert [relation.outcome for relation in report.relations] == ["confirmed"]
    text = markdown(report)
    assert "published loss" in text
    assert "| 0.319 | -0.011 |" in text
    [said] = [note for note in notes(report) if "Harik" in note]
    assert "values were rotated twice" in said
    assert report.source is not None
    assert "results.ipynb" in report.source.cited


@pytest.mark.parametrize("kind", ["repeats", "addition"])
def test_other_initial_weights_take_what_is_published(kind: str, tmp_path: Path) -> None:
    """Published numbers and claims are for training from scratch, so neither is shown."""
    report = make_report(tmp_path, kind, rows=ROWS[:2])
    assert report.source is not None
    config = [replace(run.config, init_weights=sha256_of("weights")) for run in report.runs]
    began = [replace(run, config=one) for run, one in zip(report.runs, config, strict=True)]
    found = build(began, ["pe"])
    assert (found.source, list(found.relations)) == (None, [])


def test_several_kinds_of_data_have_no_common_answers(tmp_path: Path) -> None:
    """Spans and bins are of one kind, so a table over kinds shows losses alone."""
    for kind in ("copy", "retrieval"):
        make_report(tmp_path, kind, rows=ROWS[:1], seeds=[0])
    runs = [run for kind in ("copy", "retrieval") for run in read_records(tmp_path, kind)]
    report = build(runs, ["data"])
    assert answers_csv(report) is None
    assert task_tables(report) == []
    assert "| data=copy |" in markdown(report)


def test_losses_are_said_in_their_unit(report: Report) -> None:
    assert "nats per answer token" in caption(report)
    assert "0.01 nats" in summary(report)
    said = " ".join(assumptions(report))
    assert "nats per answer token on eval_sequences rows" in said
    assert "end-of-text" not in said
    assert "epochs" not in caption(report)


# -- spikes ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def spikes(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """Return two rows and three seeds on spikes; no test changes it."""
    folder = tmp_path_factory.mktemp("spikes")
    half = ["data=spikes", "pe.fraction=0.5", "pe.base=40000"]
    make_records(
        folder,
        "mine",
        rows={row: [f"pe={row}", *half] for row in ("qk_rope", "qkvo_rope")},
        seeds=[0, 1, 2],
        loss=lambda row, seed: 0.2 - 0.02 * (row == "qkvo_rope") + 0.001 * (seed % 3),
        probes=("fit",),
        answers=lambda row, seed, loss: {
            "fit": {"r2": 1 - loss, "r2_of_dims": [1 - loss] * 2, "error_of_queries": [loss] * 16}
        },
    )
    return build(read_records(folder, "mine"), ["pe"])


def test_r2_has_a_table(spikes: Report) -> None:
    """Losses are mean squared errors, and the reference is the row that rotates q and k."""
    assert spikes.reference.label == "qk_rope-base40000-fraction0.5"
    assert spikes.rows["qkvo_rope-base40000-fraction0.5"].ours.delta == pytest.approx(-0.02)
    text = markdown(spikes)
    assert "validation losses in mean squared error" in text
    assert "0.01 of mean squared error" in text
    assert "| QKVO-RoPE base40000-fraction0.5 | 3 | 0.8190 | 0.8180 | 0.8200 |" in text
    assert "nats" not in text
    assert answers_csv(spikes) is None
    assert figure_of(spikes) is None


def test_the_page_has_a_table_of_answers(report: Report) -> None:
    """Cells hold the means of answers.csv in %, with a column per bin."""
    table = answers(report)
    headings, *lines = table.lines
    assert headings[:4] == ["variant", "seeds", "test", "1"]
    assert headings[8:10] == ["6", "longer"]

    of_csv = list(csv.DictReader(io.StringIO(answers_csv(report) or "")))
    for name, _, *cells in lines:
        [label] = [label for label, row in report.rows.items() if row.name == name]
        found = [100 * float(line["right_mean"]) for line in of_csv if line["pe"] == label]
        shown = [cell.partition(" ± ")[0] for cell in cells]
        assert shown == [f"{share:.1f}" for share in found]


def test_the_page_has_a_table_of_r2(spikes: Report) -> None:
    lines = {name: cells for name, *cells in answers(spikes).lines}
    assert lines["QKVO-RoPE base40000-fraction0.5"] == ["3", "0.8190", "0.8180", "0.8200"]


# -- the figure ------------------------------------------------------------------------------------


def test_the_figure_shows_the_shares(report: Report) -> None:
    table = points(report)
    for row in ROWS:
        for split, spans in SPANS["addition"].items():
            found = table[(table["label"] == row) & (table["split"] == split)]
            by_place = found.groupby(found["place"].round())["percent"]
            assert list(by_place.groups) == [span - 1 for span in spans]
            for span, (_, percents) in zip(spans, by_place, strict=True):
                right = [round(COUNT * level_of(row, seed, span)) / COUNT for seed in SEEDS]
                assert list(percents) == pytest.approx([100 * share for share in right])
    said = words(figure_of(report))
    assert {"test", "longer", "10", "digits of the longer number"} <= set(said)


def test_it_is_one_of_a_reports_figures(report: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("forest", "curves", "grid"):
        monkeypatch.setattr(gather, name, lambda _: None)
    assert set(gather.of_report(report)) == {"figures/answers.svg"}


def test_matches_are_judged_by_the_campaigns_test(tmp_path: Path) -> None:
    """With `test: paired`, no other pair's noise is used."""

    def level(row: str, seed: int, span: int) -> float:
        # Equally noisy rows, whose noise is pooled without that.
        return LEVELS[row] + 0.004 * (seed * (ROWS.index(row) + 1) % len(SEEDS))

    report = with_levels(make_report(tmp_path, "addition"), level)
    paired = build([replace(run, test="paired") for run in report.runs], ["pe"])
    [pooled], [own] = (match_relations(each)["test"] for each in (report, paired))
    assert own.judged.df == own.judged.num_seeds - 1
    assert pooled.judged.df > own.judged.df
