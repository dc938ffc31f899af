"""Tests of the sentences about runs that no committed record shows."""

from dataclasses import replace

import pytest
from support.records import at_seed, diverged, ended_at, report_on, runs_of, unfinished
from support.refused import refused

from rope_exp.figures.curves import by_tokens
from rope_exp.notes.verdicts import outcomes
from rope_exp.probes import drift
from rope_exp.report import build, table_csv, table_md


def test_a_run_without_an_end_is_a_word_and_never_a_number() -> None:
    """A row that lost all its runs has no loss, and one that lost a seed says so."""
    runs = {row: runs_of("english", row, seeds=(0, 1, 2)) for row in ("qk_rope", "vo_rope", "nope")}
    k = [unfinished(run) for run in runs_of("english", "k_rope", seeds=(0, 1, 2))]
    vo, nope = map(diverged, runs["vo_rope"]), [*runs["nope"][:2], diverged(runs["nope"][2])]
    report = build([*runs["qk_rope"], *vo, *k, *nope], ["pe"])

    lines = table_csv(report).splitlines()
    for label, word in (("vo_rope", "diverged"), ("k_rope", "unfinished")):
        [cells] = [line.split(",") for line in lines if f",{label}," in line]
        assert cells[3:11] == ["0", "", "", "", "", "", "", word]
    text = table_md(report)
    assert "| VO-RoPE | v o | 0 | diverged | — |" in text
    assert "worse (provisional) (1 diverged) |" in text
    notes = report.texts("notes")
    assert "VO-RoPE, seed 0: diverged after 250 of 500 steps (english/vo_rope-s0)." in notes
    assert "K-RoPE, seed 0: unfinished after 0 of 500 steps (english/k_rope-s0)." in notes
    assert "‡ NoPE: mean and Δ over seeds 0, 1." in notes


def test_interrupted_and_unequal_runs_are_noted() -> None:
    """A device that differs only between blocks affects no difference within a seed."""
    [qk], [vo] = (runs_of("english", row, seeds=(0,)) for row in ("qk_rope", "vo_rope"))
    marks = {"device": "A100", "marks": ["went on with world_size 2 after 1"]}
    unmeasured = {"device": "H200", "certificate": {}}
    runs = [replace(qk, env={**qk.env, **marks}), replace(vo, env={**vo.env, **unmeasured})]
    report = build(runs, ["pe"], left_out={"g/scraps": "it holds no run <pe>/seed<k>"})
    notes = report.texts("notes")
    assert f"QK-RoPE, seed 0: went on with world_size 2 after 1 ({qk.where})." in notes
    of_laws = [note for note in notes if "its laws were not measured" in note]
    assert of_laws == [f"VO-RoPE, seed 0: its laws were not measured before it ({vo.where})."]
    assert "Runs of seed 0 differ in device: A100, H200." in notes
    assert "g/scraps was left out: it holds no run <pe>/seed<k>." in notes
    assert {*notes} >= {*report.texts("terminal")[-3:]}

    blocks = [
        replace(run, env={**run.env, "device": f"card {run.config.seed}"})
        for run in runs_of("english", "qk_rope", "vo_rope", seeds=(0, 1))
    ]
    assert "Seeds differ in device: card 0, card 1." in build(blocks, ["pe"]).texts("notes")


def test_what_cannot_be_ordered_is_not() -> None:
    """One seed tests nothing; rows without a common seed have no order."""
    nine = report_on("english", seeds=(0,))
    assert nine.texts("summary")[0].startswith("One seed: no difference can be tested. Best: ")
    claims = [line for line in table_md(nine).splitlines() if " > " in line]
    assert claims == ['- Published order: QK ≈ QKVO > K ≈ VO > QKV > NoPE > Q/V/O (">" is better).']

    apart = [*runs_of("english", "qk_rope", seeds=(0,)), *runs_of("english", "nope", seeds=(1,))]
    assert build(apart, ["pe"]).texts("summary") == ["Rows share too few seeds for an order."]
    begun = build([unfinished(run) for run in apart], ["pe"])
    assert begun.texts("summary") == ["Nothing to compare. Rows with a loss: none."]
    # Of two variants, tau would be only a sign.
    two, three = (("qk_rope", "vo_rope", *more) for more in ((), ("nope",)))
    told = [report_on("english", *rows, seeds=(0,)).texts("summary")[0] for rows in (two, three)]
    assert ["tau" in summary for summary in told] == [False, True]


@pytest.mark.parametrize(("seeds", "word"), [(8, "worse"), (7, "worse (provisional)")])
def test_a_verdict_of_few_seeds_is_provisional(seeds: int, word: str) -> None:
    """VO is worse than QK by 0.1 with next to no noise; the note explains the word."""
    levels = {"qk_rope": 3.5, "vo_rope": 3.6}
    ended = []
    for run in runs_of("english", *levels, seeds=(0,)):
        for seed in range(seeds):
            ended.append(ended_at(at_seed(run, seed), levels[run.row] + 1e-4 * seed**2))
    report = build(ended, ["pe"])
    assert f"| {word} |" in table_md(report)
    # The word of table.csv stays, for programs that compare it.
    assert report.lines["vo_rope"]["verdict"] == "worse"
    assert ("by fewer than 8 seeds" in table_md(report)) == (seeds < 8)


def test_a_reference_is_named_by_label_or_name() -> None:
    """Both differences move to it. A missing one is refused; the default may be missing."""
    runs = runs_of("english", "qk_rope", "vo_rope", "nope", seeds=(0,))
    losses = {run.row: run.loss or 0.0 for run in runs}
    for reference in ("nope", "NoPE"):
        row = build(runs, ["pe"], reference).lines["vo_rope"]
        assert row["delta"] == pytest.approx(losses["vo_rope"] - losses["nope"])
        assert row["published_delta"] == pytest.approx(2.770 - 2.795)

    alone = [run for run in runs if run.row == "nope"]
    with refused("--reference qk_rope matches no rows. Available: nope"):
        build(alone, ["pe"], "qk_rope")
    report = build(alone, ["pe"])
    assert report.lines["nope"]["delta"] is None
    assert any(note.startswith("qk_rope has no finished run") for note in report.texts("notes"))


def test_nothing_published_stands_beside_hidden_tokens() -> None:
    runs = [run for run in runs_of("mlm", "qk_rope", "vo_rope") if [*run.factors] == ["seed"]]
    report = build(runs, ["pe"])
    assert not report.source.losses
    parts = [text for part in ("caption", "summary", "notes") for text in report.texts(part)]
    assert "published" not in "".join(parts)
    assert "Objective mlm: attention is bi" in "".join(report.texts("assumptions"))


def test_stages_are_said_and_drawn_at_their_tokens() -> None:
    """Steps have 4,096 tokens in the first stage and 8,192 in the second."""
    [run] = runs_of("english", "qk_rope", seeds=(0,))
    stages = ((256, 400), (512, 100, 16))
    staged = replace(run, config=run.config.replace("train", stages=stages))
    report = build([staged], ["pe"])
    assert "stages [[256, 400], [512, 100, 16]]" in "\n".join(report.texts("assumptions"))
    assert f"{400 * 4096 + 100 * 512 * 16:,} tokens per run" in report.texts("caption")[0]

    curve = by_tokens([staged], "val/loss")[0]
    steps = [row["step"] for row in run.metrics if "val/loss" in row]
    assert curve.index.tolist() == [
        4096 * min(step, 400) + 8192 * max(step - 400, 0) for step in steps
    ]


@pytest.mark.parametrize(
    ("medians", "said"),
    [
        ([0.05], "0.05 for q and k (one seed, below 0.1)."),
        ([0.05, 0.1, 0.2], "0.117 for q and k (0.05 to 0.2 over 3 seeds, below 0.1 in 1 of them)."),
    ],
)
def test_drift_is_judged_seed_by_seed(medians: list[float], said: str) -> None:
    runs = runs_of("english", "qk_rope", seeds=range(len(medians)))
    probed = [
        replace(run, probes={"drift": {"sites": {"qk": {"median": median}}}})
        for run, median in zip(runs, medians, strict=True)
    ]
    [sentence] = drift.notes(build(probed, ["pe"]))
    assert sentence.endswith(said)


def test_an_open_relation_is_not_provisional() -> None:
    """A difference is shown and the margin is not, so the published "≈" stays open."""
    ended = []
    for run in runs_of("english", "qk_rope", "qkvo_rope", seeds=range(3)):
        # Differences of 0.008, 0.009 and 0.01 nats.
        lag = 0.008 + 0.001 * run.config.seed
        ended.append(ended_at(run, 3.5 + lag * (run.row == "qkvo_rope")))
    report = build(ended, ["pe"])
    [relation] = outcomes(report)
    assert relation["outcome"] == "open"
    assert relation["verdict"] != "open"
    assert "open; a difference is shown" in table_md(report)
