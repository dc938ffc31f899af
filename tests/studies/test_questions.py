"""Tests of the answers to the second protocol's questions, on losses that are known."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import stats
from support.records import make_records
from support.refused import refused

from rope_exp.evidence.published import TABLE
from rope_exp.evidence.records import read_records
from rope_exp.evidence.runs import ReportError, Run
from rope_exp.studies.questions import NINE as ROWS_OF_NINE
from rope_exp.studies.questions import STARTS, Question, answer, files, lead, questions

Records = dict[str, list[Run]]
Loss = Callable[[str, int], float]

VARIANTS = tuple(TABLE.losses)
# The campaign, the overrides and the seeds of each setting.
SETTINGS: dict[str, tuple[str, list[str], tuple[int, ...]]] = {
    "warmup": ("warmup", [], (0, 1)),
    "float32": ("precision_long", ["train.precision=fp32"], (0, 1)),
    "shift": ("shift_26m", ["train.num_steps=6400"], (10, 11)),
    "shift, 2M": ("shift_26m", ["train.num_steps=500"], (0, 1)),
    "nine": ("nine_26m", ["train.num_steps=6400"], (10, 11)),
    "anywhere": ("place_26m", ["data.random_start=4096"], (10, 11)),
    "windows": (
        "place_26m",
        ["train.seq_len=1024", "train.global_batch_size=4"],
        (10, 11),
    ),
    "long": ("long_100m", ["train.num_steps=25600"], (10, 11)),
    "QK's rate": ("qk_rate_26m", ["optim.lr=0.001", "train.num_steps=6400"], (10, 11)),
    "muon": ("muon_26m", ["optim=muon", "train.num_steps=6400"], (10, 11, 200)),
}


def drawn(setting: str) -> Loss:
    """Return a loss for each variant and seed of a setting."""

    def loss(variant: str, seed: int) -> float:
        key = [list(SETTINGS).index(setting), VARIANTS.index(variant), seed]
        return float(4 + np.random.default_rng(key).normal(scale=0.1))

    return loss


L = {setting: drawn(setting) for setting in SETTINGS}


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Records:
    folder = tmp_path_factory.mktemp("records")
    for setting, (campaign, overrides, seeds) in SETTINGS.items():
        # A factor, so that two settings of one campaign have cells of their own.
        factors = dict(
            word.split("=") for word in overrides if word.startswith(("data.", "train."))
        )
        given: dict[str, list[Any]] = {
            key: [int(value)] for key, value in factors.items() if value.isdigit()
        }
        others = [word for word in overrides if word.partition("=")[0] not in given]
        rows = {variant: [f"pe={variant}", *others] for variant in VARIANTS}
        probes = ("shift",) if setting in ("nine", "anywhere") else ()
        make_records(
            folder, campaign, rows=rows, seeds=seeds, loss=L[setting], factors=given, probes=probes
        )
    return {name: read_records(folder, name) for name in {each[0] for each in SETTINGS.values()}}


def by_hand() -> list[tuple[str, Callable[[int], float]]]:
    """Return each quantity at a seed, in the protocol's order, written out."""

    def leads(setting: str) -> Callable[[int], float]:
        return lambda s: L[setting]("qk_rope", s) - L[setting]("qkvo_rope", s)

    def gains(setting: str, variant: str) -> Callable[[int], float]:
        return lambda s: L[setting]("nope", s) - L[setting](variant, s)

    def shifted(variant: str) -> Callable[[int], float]:
        return lambda s: L["nine"](variant, s) - L["shift"](variant, s)

    def less(a: Callable[[int], float], b: Callable[[int], float]) -> Callable[[int], float]:
        return lambda s: a(s) - b(s)

    found = [
        ("with shift, 2M", leads("shift, 2M")),
        ("minus without", less(leads("shift, 2M"), leads("warmup"))),
        ("with shift", leads("shift")),
        ("minus without", less(leads("shift"), leads("nine"))),
        ("NoPE by shift", shifted("nope")),
    ]
    for variant in ("vo_rope", "qk_rope", "qkvo_rope"):
        found.append((f"{variant} by shift", shifted(variant)))
        found.append(("NoPE more", less(shifted("nope"), shifted(variant))))
    found.append(("float32", less(leads("float32"), leads("warmup"))))
    for variant in ("qk_rope", "qkvo_rope"):
        found.append(("gains", less(gains("float32", variant), gains("warmup", variant))))
    for variant in ("q_rope", "k_rope", "v_rope", "o_rope"):
        behind = less(
            lambda s, v=variant: L["anywhere"](v, s),  # type: ignore[misc]
            lambda s: L["nine"]("nope", s),
        )
        found.append(("from anywhere", behind))
        # The records' shift adds 0.1 to absolute variants at each further start.
        for place, _ in enumerate(STARTS, start=1):
            found.append(("at a start", less(behind, lambda _, p=place: -0.1 * p)))  # type: ignore[misc]
    found.append(("VO", lambda s: L["anywhere"]("vo_rope", s) - L["nine"]("vo_rope", s)))
    for variant in ("q_rope", "v_rope", "o_rope", "k_rope", "vo_rope", "qk_rope"):
        found.append(("windows", gains("windows", variant)))
        found.append(("minus 256", less(gains("windows", variant), gains("nine", variant))))
    found.append(("long", gains("long", "q_rope")))
    found.append(("minus 26M", less(gains("long", "q_rope"), gains("nine", "q_rope"))))
    found.append(("lead", leads("long")))
    found.append(("rate", lambda s: L["QK's rate"]("qk_rope", s) - L["nine"]("qkvo_rope", s)))
    return found


def asked_as(number: int) -> Question:
    """Return the first question of a number."""
    return next(each for each in questions() if each.number == number)


def test_each_answer_is_its_sum_of_losses(records: Records) -> None:
    """Question 6 is about runs that were asked for `repeat`."""
    asked = [each for each in questions() if each.number != 6]
    for each, (said, value) in zip(asked, by_hand(), strict=True):
        found = answer(records, each.terms)
        assert found == pytest.approx({seed: value(seed) for seed in found}), (each, said)
        assert len(found) == 2
    assert answer(records, asked_as(6).terms) == {}


def test_intervals_are_those_of_the_paired_t(records: Records) -> None:
    text = files(["nine_26m"], records, {})["nine_26m/questions.md"].decode()
    [line] = [each for each in text.splitlines() if "lead over QK, float32" in each]
    changes = [
        sign * (L[setting]("qk_rope", seed) - L[setting]("qkvo_rope", seed))
        for seed in (0, 1)
        for setting, sign in (("float32", 1), ("warmup", -1))
    ]
    by_seed = [changes[0] + changes[1], changes[2] + changes[3]]
    low, high = stats.t.interval(0.95, 1, np.mean(by_seed), stats.sem(by_seed))
    numbers = f"| 2 | 0 | {np.mean(by_seed):+.4f} | {low:+.4f} to {high:+.4f} | -0.015 to 0.015 |"
    assert line == f"| 2 | QKVO's lead over QK, float32 minus bf16 {numbers}"


def test_the_orders_leave_out_the_seed_that_chose_rates(records: Records) -> None:
    means = [
        [np.mean([L[setting](variant, seed) for seed in (10, 11)]) for variant in VARIANTS]
        for setting in ("muon", "nine")
    ]
    text = files(["nine_26m"], records, {})["nine_26m/questions.md"].decode()
    tau = stats.kendalltau(*means).statistic
    assert f"between the two orders is {tau:.2f};" in text
    best = VARIANTS[int(np.argmin(means[0]))].removesuffix("_rope").upper()
    assert f"Muon: {best}, " in text.replace("NoPE", "NOPE")


def test_a_lead_where_neither_copies(records: Records) -> None:
    """QKVO copies on seed 11: its second reading gains 0.6 nats."""

    def probed(run: Run) -> Run:
        is_copy = (run.config.pe.label, run.config.seed) == ("qkvo_rope", 11)
        losses = [4.0, 3.4 if is_copy else 3.9]
        return replace(run, probes={"repeat": {"reading": [1, 2], "loss": losses}})

    asked = {"nine_26m": [probed(run) for run in records["nine_26m"]]}
    expected = L["nine"]("qk_rope", 10) - L["nine"]("qkvo_rope", 10)
    assert answer(asked, asked_as(6).terms) == pytest.approx({10: expected})


def test_a_run_that_diverged_is_counted_and_left_out(records: Records) -> None:
    def diverged(run: Run) -> Run:
        if (run.config.pe.label, run.config.seed) != ("qkvo_rope", 10):
            return run
        return replace(run, result=run.result | {"status": "diverged", "val/loss": None})

    asked = records | {"long_100m": [diverged(run) for run in records["long_100m"]]}
    text = files(["nine_26m"], asked, {})["nine_26m/questions.md"].decode()
    [line] = [each for each in text.splitlines() if "lead over QK, 105M" in each]
    assert line.startswith("| 5 | QKVO's lead over QK, 105M tokens | 1 | 1 | ")


def test_runs_that_differ_in_more_are_refused(records: Records) -> None:
    nine = records["nine_26m"]
    first, *others = nine
    faster = replace(first, config=first.config.replace("optim", lr=0.5))
    elsewhere = replace(first, result=first.result | {"data_sha256": "0" * 64})
    cases = {"learning rate": [faster, *others], "corpus": [elsewhere, *others]}
    for words, runs in cases.items():
        terms = {(ROWS_OF_NINE, first.config.pe.label): 1, (ROWS_OF_NINE, "qk_rope"): -1}
        with refused(words, by=ReportError):
            answer({"nine_26m": runs}, terms)
    with refused("one variant and seed", by=ReportError):
        answer({"nine_26m": [*nine, *map(replace, nine)]}, lead(ROWS_OF_NINE))


def test_without_a_run_of_the_questions_there_is_no_file(records: Records) -> None:
    assert files(["warmup"], {"warmup": records["warmup"]}, {}) == {}
    assert files(["precision_long"], records, {}) == {}


def test_every_question_subtracts_as_much_as_it_adds() -> None:
    """An effect that all runs of a seed share does not change an answer."""
    assert all(sum(each.terms.values()) == 0 for each in questions())
    assert {each.number for each in questions()} == {1, 2, 3, 5, 6, 7}
