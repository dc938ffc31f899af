"""The questions of docs/protocol-2.md about several campaigns, in results/nine_26m/questions.md.

Each answer is a sum of losses with signs, taken at each seed that all of them have, then averaged.
Question 6 is about one campaign at a time: its table.md counts the runs that copy.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd
from scipy import stats

from rope_exp.evidence.comparable import value_of
from rope_exp.evidence.contrasts import Losses, adjusted_means, kendall_tau
from rope_exp.evidence.layout import ALPHA
from rope_exp.evidence.runs import Run
from rope_exp.report.content import Report
from rope_exp.report.spelling import markdown_table

ABOUT = """**Questions of [the second protocol](../../docs/protocol-2.md#4-five-questions): differences within a seed, in nats per token, averaged over the seeds that all their runs have, with the paired 95 % interval.**

{table}

Expected: what was written down before the runs.
"""  # noqa: E501
ORDER = """
Question 4: Kendall's tau between the orders of {count} variants by Muon and by AdamW is {tau:.2f}. Expected: at least 0.7.
"""  # noqa: E501


class Rows(NamedTuple):
    """The rows of a campaign in which a key has this value."""

    campaign: str
    key: str
    value: Any


WARMUP = Rows("warmup", "train.num_steps", 500)
NINE = Rows("nine_26m", "train.num_steps", 6400)
SHIFT_2M = Rows("shift_26m", "train.num_steps", 500)
SHIFT = Rows("shift_26m", "train.num_steps", 6400)
FLOAT32 = Rows("precision_long", "train.num_steps", 500)
ANYWHERE = Rows("place_26m", "data.random_start", 4096)
WINDOWS = Rows("place_26m", "train.seq_len", 1024)
LONG = Rows("long_100m", "train.num_steps", 25600)
MUON = Rows("muon_26m", "optim.name", "muon")
# Where rates were chosen, a variant has a run of each rate.
CHOOSING = (200, 201)

NAMES = {
    "nope": "NoPE",
    "q_rope": "Q",
    "k_rope": "K",
    "v_rope": "V",
    "o_rope": "O",
    "vo_rope": "VO",
    "qk_rope": "QK",
    "qkvo_rope": "QKVO",
}

# The sign of each loss in an answer, by its rows and its variant.
Terms = Mapping[tuple[Rows, str], int]


class Question(NamedTuple):
    """A question of the protocol, by its number there, and what was expected, if anything."""

    number: int
    quantity: str
    terms: Terms
    expected: str = ""


def gap(a: str, of_a: Rows, b: str, of_b: Rows) -> Terms:
    """The loss of a minus that of b."""
    return {(of_a, a): 1, (of_b, b): -1}


def lead(rows: Rows) -> Terms:
    """QKVO's lead over QK."""
    return gap("qk_rope", rows, "qkvo_rope", rows)


def gain(variant: str, rows: Rows) -> Terms:
    """A variant's gain over NoPE."""
    return gap("nope", rows, variant, rows)


def change(here: Terms, there: Terms) -> Terms:
    """One answer minus another."""
    return {**here, **{term: -sign for term, sign in there.items()}}


def questions() -> list[Question]:
    """Return what is asked, in the order of the protocol."""
    asked = [
        Question(1, "QKVO's lead over QK, 2M tokens, token shift", lead(SHIFT_2M), "below 0.020"),
        Question(1, "minus the lead without", change(lead(SHIFT_2M), lead(WARMUP))),
        Question(1, "QKVO's lead over QK, 26M, token shift", lead(SHIFT), "-0.01 to 0.01"),
        Question(1, "minus the lead without", change(lead(SHIFT), lead(NINE))),
    ]
    for variant in ("nope", "vo_rope", "qk_rope", "qkvo_rope"):
        expected = "above 0.05, the most" if variant == "nope" else ""
        gained = gap(variant, NINE, variant, SHIFT)
        asked.append(Question(1, f"{NAMES[variant]} gains by token shift, 26M", gained, expected))

    moved = change(lead(FLOAT32), lead(WARMUP))
    asked.append(Question(2, "QKVO's lead over QK, float32 minus bf16", moved, "-0.015 to 0.015"))
    for variant in ("qk_rope", "qkvo_rope"):
        moved = change(gain(variant, FLOAT32), gain(variant, WARMUP))
        quantity = f"{NAMES[variant]}'s gain over NoPE, float32 minus bf16"
        asked.append(Question(2, quantity, moved, "-0.015 to 0.015"))

    for variant in ("q_rope", "k_rope", "v_rope", "o_rope"):
        expected = "0 to 0.02" if variant in ("v_rope", "o_rope") else "-0.02 to 0.02"
        behind = gap(variant, ANYWHERE, "nope", NINE)
        asked.append(
            Question(3, f"{NAMES[variant]} from random places, minus NoPE", behind, expected)
        )
    moved = gap("vo_rope", ANYWHERE, "vo_rope", NINE)
    asked.append(Question(3, "VO from random places, minus VO from 0", moved, "-0.005 to 0.005"))
    for variant in ("q_rope", "v_rope", "o_rope", "k_rope", "vo_rope", "qk_rope"):
        is_absolute = variant in ("q_rope", "v_rope", "o_rope")
        quantity = f"{NAMES[variant]}'s gain over NoPE, windows of 1,024"
        asked.append(Question(3, quantity, gain(variant, WINDOWS), "above 0" * is_absolute))
        moved = change(gain(variant, WINDOWS), gain(variant, NINE))
        asked.append(Question(3, "minus the gain at 256", moved, "below 0" * is_absolute))

    asked += [
        Question(5, "NoPE's deficit to Q, 105M tokens", gain("q_rope", LONG), "0 to 0.02"),
        Question(5, "minus the deficit at 26M", change(gain("q_rope", LONG), gain("q_rope", NINE))),
        Question(5, "QKVO's lead over QK, 105M tokens", lead(LONG), "below 0.01"),
    ]
    return asked


def files(
    asked: Collection[str], records: Mapping[str, Sequence[Run]], tables: Mapping[str, Report]
) -> dict[str, bytes]:
    """Return questions.md; nothing before a question has an answer."""
    ours = {rows.campaign for each in questions() for rows, _ in each.terms} | {MUON.campaign}
    if not (ours - {WARMUP.campaign}).intersection(asked):
        return {}
    lines = []
    for each in questions():
        if by_seed := answer(records, each.terms):
            told = {"question": each.number, "quantity": each.quantity, "seeds": len(by_seed)}
            lines.append({**told, **_mean(by_seed), "expected": each.expected})
    text = ABOUT.format(table=markdown_table(pd.DataFrame(lines), "+.4f")) if lines else ""

    tau, count = kendall_tau(_means(records, MUON), _means(records, NINE))
    if tau is not None:
        text += ORDER.format(count=count, tau=tau)
    return {"nine_26m/questions.md": text.encode()} if text else {}


def answer(records: Mapping[str, Sequence[Run]], terms: Terms) -> dict[int, float]:
    """Return the sum of losses with their signs, at each seed that has all of them."""
    losses = [
        (_losses(records, rows).get(variant, {}), sign) for (rows, variant), sign in terms.items()
    ]
    shared = set.intersection(*(set(of_term) for of_term, _ in losses))
    return {seed: sum(sign * of_term[seed] for of_term, sign in losses) for seed in sorted(shared)}


def _losses(records: Mapping[str, Sequence[Run]], rows: Rows) -> Mapping[str, Losses]:
    """Return the losses of the rows by variant and seed."""
    found: dict[str, dict[int, float]] = {}
    for run in records.get(rows.campaign, ()):
        is_chosen = run.config.seed not in CHOOSING
        if is_chosen and run.loss is not None and value_of(run.config, rows.key) == rows.value:
            found.setdefault(run.config.pe.label, {})[run.config.seed] = run.loss
    return found


def _means(records: Mapping[str, Sequence[Run]], rows: Rows) -> dict[str, float]:
    return dict(adjusted_means(pd.DataFrame(_losses(records, rows), dtype=float)))


def _mean(by_seed: Mapping[int, float]) -> dict[str, Any]:
    """Return the mean over seeds, and its interval by the t distribution."""
    values = list(by_seed.values())
    mean = sum(values) / len(values)
    if len(values) < 2:
        return {"mean": mean, "95 % interval": None}
    low, high = stats.ttest_1samp(values, 0).confidence_interval(1 - ALPHA)
    return {"mean": mean, "95 % interval": f"{low:+.4f} to {high:+.4f}"}
