"""Tests of verdicts on generated data by right answers, and of the cases in which they are open."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from support.records import runs_of

from rope_exp.probes.answers import files, match_relations, tables
from rope_exp.report import Report, build, table_md
from rope_exp.words.relations import outcomes

SHARES = {"qk_rope": 0.7, "qkvo_rope": 0.9, "vo_rope": 0.8, "nope": 0.5}
PAIR = ("qk_rope", "qkvo_rope")
Share = Callable[[str, int], float]


def with_shares(share: Share, rows: tuple[str, ...] = PAIR) -> Report:
    """Return the report on recorded runs of `addition` as if they answered these shares right."""
    runs = []
    for run in runs_of("addition", *rows, seeds=range(5)):
        if run.factors["data.order"] != "plain":
            continue
        found = {}
        for split, answer in run.probes["answers"].items():
            of_run = share(run.row, run.config.seed)
            right = [round(count * of_run) for count in answer["count"]]
            found[split] = {**answer, "right": right}
        runs.append(replace(run, probes={"answers": found}))
    return build(runs, ["pe"])


@pytest.mark.parametrize(
    ("levels", "outcome"),
    [
        ((0.7, 0.9), "confirmed"),
        ((0.9, 0.7), "contradicted"),
        ((1.0, 1.0), "open; floor or ceiling effect"),
        ((0.0, 0.0), "open; floor or ceiling effect"),
    ],
)
def test_ropers_claim_is_judged_by_matches(levels: tuple[float, float], outcome: str) -> None:
    """QKVO > QK is judged by the share of wrong answers, and is open if none or all are right."""
    fixed = dict(zip(PAIR, levels, strict=True))

    def share(row: str, seed: int) -> float:
        return fixed[row] + 0.01 * (seed * len(row) % 3) * (0 < fixed[row] < 1)

    report = with_shares(share)
    relations = match_relations(report)
    assert [relation["split"] for relation in relations] == ["test", "longer"]
    for relation in relations:
        assert (relation["a"], relation["b"]) == ("qkvo_rope", "qk_rope")
        assert relation["outcome"] == outcome
    assert outcome in "\n".join(tables(report))


def test_a_task_without_mistakes_opens_both_measures() -> None:
    """If all answers are right, the verdict by losses is open too; if none is, it stays."""
    [by_losses] = outcomes(with_shares(lambda *_: 0.0))
    assert "too easy" not in by_losses["outcome"]
    found = with_shares(lambda *_: 1.0)
    assert [pair["outcome"] for pair in outcomes(found)] == ["open; the task is too easy"]
    assert "| open; the task is too easy |" in table_md(found)


def test_matches_are_judged_by_the_campaigns_test() -> None:
    """With `test: paired`, no other pair's noise is used."""
    rows = tuple(SHARES)
    report = with_shares(
        lambda row, seed: SHARES[row] + 0.004 * (seed * (rows.index(row) + 1) % 5), rows
    )
    paired = build([replace(run, test="paired") for run in report.runs], ["pe"])
    pooled, own = (match_relations(each)[0] for each in (report, paired))
    assert own["df"] == own["num_seeds"] - 1 < pooled["df"]


def test_other_initial_weights_take_what_is_published() -> None:
    """Published numbers and claims are for training from scratch, so neither is shown."""
    runs = runs_of("roper")
    assert any("Harik" in note for note in build(runs, ["pe"]).told("notes"))
    began = [replace(run, config=replace(run.config, init_weights="0" * 64)) for run in runs]
    found = build(began, ["pe"])
    assert (found.source.source, outcomes(found)) == ("", [])
    assert "Initial weights: 000000000000 from a finished run" in "".join(found.told("assumptions"))


def test_several_kinds_of_data_have_no_common_answers() -> None:
    """Spans and bins are of one kind, so a table over kinds shows losses alone."""
    runs = [*runs_of("copy", "qk_rope", seeds=(0,)), *runs_of("retrieval", "qk_rope", seeds=(0,))]
    report = build(runs, ["data", "model", "train", "optim", "schedule"])
    assert files(report) == {}
    assert tables(report) == []
