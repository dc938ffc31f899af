"""The questions of docs/protocol-2.md about several campaigns, in results/nine_26m/questions.md.

Each answer is a sum of losses with signs, taken at each seed that all of them have, then averaged.
How many runs copy (question 6) is in table.md of each campaign.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd
from scipy import stats

from rope_exp.evidence.contrasts import Losses, adjusted_means, kendall_tau
from rope_exp.evidence.layout import ALPHA
from rope_exp.evidence.published import TABLE
from rope_exp.evidence.runs import ReportError, Run
from rope_exp.report.content import Report
from rope_exp.report.probed import copies
from rope_exp.report.spelling import markdown_table

ABOUT = """**Questions of [the second protocol](../../docs/protocol-2.md#4-five-questions): differences within a seed, in nats per token, averaged over the seeds that all their runs have, with the paired 95 % interval.**

{table}

Expected: what was written down before the runs. Answers from fewer than eight seeds are provisional. Diverged: runs without a loss among those of an answer.
"""  # noqa: E501
ORDER = """
Question 4, best first. Muon: {muon}. AdamW: {adamw}. Expected of Muon: QKVO, QK and QKV are the first three. Kendall's tau between the two orders is {tau:.2f}; expected: at least 0.7.
"""  # noqa: E501

NAMES = {label: label.removesuffix("_rope").upper() for label in TABLE.losses} | {"nope": "NoPE"}
# Where rates were chosen, a variant has a run of each rate.
CHOOSING = (200, 201)
# The probe `shift` reads windows that begin at these positions, too.
STARTS = (64, 256, 1024, 4096)


class Rows(NamedTuple):
    """Some runs of a campaign, and the loss that is read: None if a run has none."""

    campaign: str
    is_meant: Callable[[Run], bool]
    loss: Callable[[Run], float | None] = lambda run: run.loss


def after(num_steps: int) -> Callable[[Run], bool]:
    """Return a test for runs of this many steps."""
    return lambda run: run.config.train.num_steps == num_steps


def starting_at(position: int) -> Callable[[Run], float | None]:
    """Return the loss of windows that begin at a position."""

    def loss(run: Run) -> float | None:
        found = run.probes.get("shift", {"start": [], "loss": []})
        return dict(zip(found["start"], found["loss"], strict=True)).get(position)

    return loss


WARMUP = Rows("warmup", after(500))
NINE = Rows("nine_26m", after(6400))
NOT_COPYING = Rows(
    "nine_26m",
    lambda run: run.status == "diverged" or ("repeat" in run.probes and not copies(run)),
)
SHIFT_2M = Rows("shift_26m", after(500))
SHIFT = Rows("shift_26m", after(6400))
FLOAT32 = Rows("precision_long", after(500))
ANYWHERE = Rows("place_26m", lambda run: run.config.data.random_start == 4096)
WINDOWS = Rows("place_26m", lambda run: run.config.train.seq_len == 1024)
LONG = Rows("long_100m", after(25600))
OTHER_RATE = Rows("qk_rate_26m", after(6400))
MUON = Rows("muon_26m", after(6400))

# The sign of each loss in an answer, by its rows and its variant.
Terms = Mapping[tuple[Rows, str], int]


class Question(NamedTuple):
    """A question of the protocol, by its number there, and what was expected, if anything."""

    number: int
    quantity: str
    terms: Terms
    expected: str = ""


def gap(a: str, of_a: Rows, b: str, of_b: Rows) -> Terms:
    """Return the terms of a's loss minus b's."""
    return {(of_a, a): 1, (of_b, b): -1}


def lead(rows: Rows) -> Terms:
    """Return the terms of QKVO's lead over QK."""
    return gap("qk_rope", rows, "qkvo_rope", rows)


def gain(variant: str, rows: Rows) -> Terms:
    """Return the terms of a variant's gain over NoPE."""
    return gap("nope", rows, variant, rows)


def by_shift(variant: str) -> Terms:
    """Return the terms of a variant's gain by token shift at 26M tokens."""
    return gap(variant, NINE, variant, SHIFT)


def change(here: Terms, there: Terms) -> Terms:
    """Return the terms of one answer minus another."""
    return {**here, **{term: -sign for term, sign in there.items()}}


def questions() -> list[Question]:
    """Return the questions, in the order of the protocol."""
    asked = [
        Question(1, "QKVO's lead over QK, 2M tokens, token shift", lead(SHIFT_2M), "below 0.020"),
        Question(1, "minus the lead without", change(lead(SHIFT_2M), lead(WARMUP))),
        Question(1, "QKVO's lead over QK, 26M, token shift", lead(SHIFT), "-0.01 to 0.01"),
        Question(1, "minus the lead without", change(lead(SHIFT), lead(NINE))),
        Question(1, "NoPE gains by token shift, 26M", by_shift("nope"), "above 0.05"),
    ]
    for variant in ("vo_rope", "qk_rope", "qkvo_rope"):
        asked.append(Question(1, f"{NAMES[variant]} gains by token shift, 26M", by_shift(variant)))
        more = change(by_shift("nope"), by_shift(variant))
        asked.append(Question(1, f"NoPE gains more than {NAMES[variant]} by", more, "above 0"))

    moved = change(lead(FLOAT32), lead(WARMUP))
    asked.append(Question(2, "QKVO's lead over QK, float32 minus bf16", moved, "-0.015 to 0.015"))
    for variant in ("qk_rope", "qkvo_rope"):
        moved = change(gain(variant, FLOAT32), gain(variant, WARMUP))
        quantity = f"{NAMES[variant]}'s gain over NoPE, float32 minus bf16"
        asked.append(Question(2, quantity, moved, "-0.015 to 0.015"))

    for variant in ("q_rope", "k_rope", "v_rope", "o_rope"):
        expected = "0 to 0.02" if variant in ("v_rope", "o_rope") else "-0.02 to 0.02"
        behind = gap(variant, ANYWHERE, "nope", NINE)
        quantity = f"{NAMES[variant]} from random places, minus NoPE"
        asked.append(Question(3, quantity, behind, expected))
        for start in STARTS:
            there, nope = (rows._replace(loss=starting_at(start)) for rows in (ANYWHERE, NINE))
            behind = gap(variant, there, "nope", nope)
            asked.append(Question(3, f"the same, read from position {start:,}", behind))
    moved = gap("vo_rope", ANYWHERE, "vo_rope", NINE)
    asked.append(Question(3, "VO from random places, minus VO from 0", moved, "-0.005 to 0.005"))
    for variant in ("q_rope", "v_rope", "o_rope", "k_rope", "vo_rope", "qk_rope"):
        is_absolute = variant in ("q_rope", "v_rope", "o_rope")
        quantity = f"{NAMES[variant]}'s gain over NoPE, windows of 1,024"
        asked.append(Question(3, quantity, gain(variant, WINDOWS), "above 0" * is_absolute))
        moved = change(gain(variant, WINDOWS), gain(variant, NINE))
        asked.append(Question(3, "minus the gain at 256", moved, "below 0" * is_absolute))

    longer = change(gain("q_rope", LONG), gain("q_rope", NINE))
    of_those = "QKVO's lead over QK where neither copies, 26M"
    at_003 = gap("qk_rope", OTHER_RATE, "qkvo_rope", NINE)
    asked += [
        Question(5, "NoPE's deficit to Q, 105M tokens", gain("q_rope", LONG), "0 to 0.02"),
        Question(5, "minus the deficit at 26M", longer),
        Question(5, "QKVO's lead over QK, 105M tokens", lead(LONG), "below 0.01"),
        Question(6, of_those, lead(NOT_COPYING), "0.01 to 0.02"),
        Question(7, "QKVO's lead over QK at a rate of 0.003, 26M", at_003, "0.01 to 0.03"),
    ]
    return asked


def files(
    asked: Collection[str], records: Mapping[str, Sequence[Run]], tables: Mapping[str, Report]
) -> dict[str, bytes]:
    """Return questions.md if nine_26m or all campaigns are asked for.

    Raises:
        ReportError: the runs of an answer are not comparable.
    """
    if NINE.campaign not in asked and len(asked) < len(records):
        return {}
    lines = []
    for each in questions():
        if by_seed := answer(records, each.terms):
            told = {"question": each.number, "quantity": each.quantity, "seeds": len(by_seed)}
            diverged = num_diverged(records, each.terms)
            lines.append(
                {**told, "diverged": diverged, **_mean(by_seed), "expected": each.expected}
            )
    order = _orders(records)
    if not lines and not order:
        return {}
    table = markdown_table(pd.DataFrame(lines), "+.4f") if lines else "No answer yet."
    return {"nine_26m/questions.md": (ABOUT.format(table=table) + order).encode()}


def answer(records: Mapping[str, Sequence[Run]], terms: Terms) -> dict[int, float]:
    """Return the sum of losses with their signs, at each seed that has all of them.

    Raises:
        ReportError: two of the runs differ in corpus, or in a variant's learning rate.
    """
    chosen = [(_runs(records, rows, variant), sign) for (rows, variant), sign in terms.items()]
    known: dict[str, tuple[Any, Run]] = {}
    for (_, variant), (of_term, _) in zip(terms, chosen, strict=True):
        for run, _ in of_term.values():
            facts = {"": run.result["data_sha256"], variant: run.config.optim.lr}
            for key, fact in facts.items():
                other, first = known.setdefault(key, (fact, run))
                if other != fact:
                    differing = "learning rate" if key else "corpus"
                    raise ReportError(f"{first.where} and {run.where} differ in {differing}")

    shared = set.intersection(*(set(of_term) for of_term, _ in chosen))
    return {
        seed: sum(sign * of_term[seed][1] for of_term, sign in chosen) for seed in sorted(shared)
    }


def num_diverged(records: Mapping[str, Sequence[Run]], terms: Terms) -> int:
    """Return how many of an answer's runs diverged."""
    found = {
        run.where
        for rows, variant in terms
        for run in _meant(records, rows, variant)
        if run.status == "diverged"
    }
    return len(found)


def _meant(records: Mapping[str, Sequence[Run]], rows: Rows, variant: str) -> list[Run]:
    """Return a variant's runs among the rows."""
    return [
        run
        for run in records.get(rows.campaign, ())
        if run.config.seed not in CHOOSING and run.config.pe.label == variant and rows.is_meant(run)
    ]


def _runs(
    records: Mapping[str, Sequence[Run]], rows: Rows, variant: str
) -> dict[int, tuple[Run, float]]:
    """Return a variant's runs and losses by seed."""
    found: dict[int, tuple[Run, float]] = {}
    for run in _meant(records, rows, variant):
        loss = rows.loss(run)
        if run.loss is None or loss is None:
            continue
        other, _ = found.setdefault(run.config.seed, (run, loss))
        if other is not run:
            raise ReportError(f"{other.where} and {run.where} have one variant and seed")
    return found


def _orders(records: Mapping[str, Sequence[Run]]) -> str:
    """Return both orders of the nine and their tau; "" before all nine have runs by both."""
    means = []
    for rows in (MUON, NINE):
        losses: dict[str, Losses] = {
            variant: {seed: loss for seed, (_, loss) in _runs(records, rows, variant).items()}
            for variant in TABLE.losses
        }
        means.append(adjusted_means(pd.DataFrame(losses, dtype=float)))
    if any(len(each) < len(TABLE.losses) for each in means):
        return ""
    muon, adamw = (
        ", ".join(NAMES[str(label)] for label in each.sort_values().index) for each in means
    )
    tau, _ = kendall_tau(*(dict(each) for each in means))
    return ORDER.format(muon=muon, adamw=adamw, tau=tau)


def _mean(by_seed: Mapping[int, float]) -> dict[str, Any]:
    """Return the mean over seeds, and its interval by the t distribution."""
    values = list(by_seed.values())
    mean = sum(values) / len(values)
    if len(values) < 2:
        return {"mean": mean, "95 % interval": None}
    low, high = stats.ttest_1samp(values, 0).confidence_interval(1 - ALPHA)
    return {"mean": mean, "95 % interval": f"{low:+.4f} to {high:+.4f}"}
