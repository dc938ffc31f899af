"""Tests of the answers to the second protocol's questions, against scipy on known losses."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats
from support.records import make_records

from rope_exp.evidence.records import read_records
from rope_exp.evidence.runs import Run
from rope_exp.studies.questions import Rows, answer, files, lead, questions

VARIANTS = ("nope", "q_rope", "qk_rope", "qkvo_rope")
Records = dict[str, list[Run]]


def drawn(campaign: str) -> Callable[[str, int], float]:
    def loss(variant: str, seed: int) -> float:
        key = [len(campaign), VARIANTS.index(variant), seed]
        return float(4 + np.random.default_rng(key).normal(scale=0.1))

    return loss


def made(folder: Path, **campaigns: dict[str, Any]) -> Records:
    for name, setting in campaigns.items():
        overrides = setting.pop("overrides", [])
        rows = {row: [f"pe={row}", *overrides] for row in setting.pop("rows", VARIANTS)}
        make_records(folder, name, rows=rows, loss=drawn(name), probes=(), **setting)
    return {name: read_records(folder, name) for name in campaigns}


def test_a_lead_in_float32_minus_that_in_bf16(tmp_path: Path) -> None:
    records = made(
        tmp_path,
        warmup={"seeds": range(5)},
        precision_long={"seeds": range(1, 4), "overrides": ["train.precision=fp32"]},
    )
    text = files(["precision_long"], records, {})["nine_26m/questions.md"].decode()
    [line] = [each for each in text.splitlines() if "lead over QK, float32" in each]

    here, there = drawn("precision_long"), drawn("warmup")
    changes = [
        (here("qk_rope", seed) - here("qkvo_rope", seed))
        - (there("qk_rope", seed) - there("qkvo_rope", seed))
        for seed in (1, 2, 3)
    ]
    low, high = stats.t.interval(0.95, 2, np.mean(changes), stats.sem(changes))
    numbers = f"| 3 | {np.mean(changes):+.4f} | {low:+.4f} to {high:+.4f} | -0.015 to 0.015 |"
    assert line == f"| 2 | QKVO's lead over QK, float32 minus bf16 {numbers}"


def test_rows_of_one_campaign_are_told_apart_by_a_key(tmp_path: Path) -> None:
    """Only seeds with every run of the question count."""
    steps = {"train.num_steps": [500, 6400]}
    records = made(tmp_path, shift_26m={"seeds": (0, 1), "factors": steps})
    records["shift_26m"] = [
        run
        for run in records["shift_26m"]
        if (run.row, run.config.seed, run.config.train.num_steps) != ("qk_rope", 1, 500)
    ]
    loss = drawn("shift_26m")
    expected = {seed: loss("qk_rope", seed) - loss("qkvo_rope", seed) for seed in (0, 1)}
    short, long = (Rows("shift_26m", "train.num_steps", count) for count in (500, 6400))
    assert answer(records, lead(short)) == pytest.approx({0: expected[0]})
    assert answer(records, lead(long)) == pytest.approx(expected)


def test_the_order_by_muon_leaves_out_the_seed_that_chose_rates(tmp_path: Path) -> None:
    records = made(
        tmp_path,
        nine_26m={"seeds": (10, 11), "overrides": ["train.num_steps=6400"]},
        muon_26m={"seeds": (10, 11, 200), "overrides": ["optim=muon"]},
    )
    means = [
        [np.mean([drawn(name)(row, seed) for seed in (10, 11)]) for row in VARIANTS]
        for name in ("muon_26m", "nine_26m")
    ]
    text = files(["muon_26m"], records, {})["nine_26m/questions.md"].decode()
    tau = stats.kendalltau(*means).statistic
    assert f"orders of 4 variants by Muon and by AdamW is {tau:.2f}." in text


def test_without_a_campaign_of_the_questions_there_is_no_file(tmp_path: Path) -> None:
    records = made(tmp_path, warmup={"seeds": (0, 1)})
    assert files(["warmup"], records, {}) == {}
    assert files(["nine_26m"], records, {}) == {}


def test_every_question_subtracts_as_much_as_it_adds() -> None:
    """An offset that all runs of a seed share must not change an answer."""
    assert all(sum(each.terms.values()) == 0 for each in questions())
    assert {each.number for each in questions()} == {1, 2, 3, 5}
