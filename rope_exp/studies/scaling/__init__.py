"""How differences between variants move with size, tokens and length: results/scaling/scaling.md.

The differences of several campaigns are fitted by lines in logarithms (fit.py). Other tables show
crossings as tokens grow (below) and within a run (passes.py), and the order of variants at
each size and budget (orders.py). Nothing is extrapolated.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

import pandas as pd

from rope_exp.evidence import published
from rope_exp.evidence.comparable import comparable
from rope_exp.evidence.runs import Run
from rope_exp.report.content import Report
from rope_exp.report.sentences import spell_p
from rope_exp.report.spelling import markdown_table, millions
from rope_exp.studies.scaling.fit import AXES, LEAST_WARMUP, Fit, differences, fit, fits
from rope_exp.studies.scaling.orders import orders
from rope_exp.studies.scaling.passes import PASSES, passes_within

CAMPAIGNS = ("warmup", "tokens", "length", "size")
# The keys in which their runs may differ, other than variant and seed.
VARIED = (
    "model.hidden_size",
    "model.intermediate_size",
    "model.num_attention_heads",
    "model.num_key_value_heads",
    "train.num_steps",
    "train.seq_len",
    "train.global_batch_size",
    "train.eval_sequences",
    "schedule.warmup_fraction",
)


def files(
    asked: Collection[str], records: Mapping[str, Sequence[Run]], tables: Mapping[str, Report]
) -> dict[str, bytes]:
    """Return scaling.md; nothing unless all campaigns are asked for, or if no line can be fitted.

    Raises:
        ReportError: see `scaling`.
    """
    if len(asked) < len(records):
        return {}
    runs = [run for name in CAMPAIGNS for run in records.get(name, ())]
    text = scaling(runs)
    return {"scaling/scaling.md": text.encode()} if text else {}


def scaling(runs: Sequence[Run]) -> str:
    """Return the tables of fits, crossings and orders; empty if nothing can be fitted.

    Runs with a shorter warmup than LEAST_WARMUP are left out.

    Raises:
        ReportError: two runs belong to one cell, or differ in more than variant, seed, size, budget
            and length.
    """
    runs = [run for run in runs if run.config.num_warmup_steps >= LEAST_WARMUP]
    if runs:
        comparable(runs, ["pe", *VARIED])
    found = fits(runs, published.REFERENCE)
    if not found:
        return ""

    alike, place = _of_one_place(runs)
    campaigns = dict.fromkeys(run.group for run in runs)
    ranges = [f"{axis} {_range(found, axis)}" for axis in AXES]
    parts = [
        f"**Difference from {published.REFERENCE} as a line in logarithms, fitted to the "
        f"within-block differences of {', '.join(campaigns)}: {', '.join(ranges)}.** Nats per "
        "token; slopes are nats per doubling.",
        markdown_table(pd.DataFrame([_line(label, fitted) for label, fitted in found.items()])),
        _limits(found, runs),
        *_crossings(alike, place),
        *passes_within(alike, place),
        *orders(runs, alike[0].config.train.seq_len),
    ]
    return "\n\n".join(parts) + "\n"


def _of_one_place(runs: Sequence[Run]) -> tuple[list[Run], str]:
    """Return the runs of the most common size and length, and these in words."""
    ended = [run for run in runs if run.result]
    places = Counter((run.result["params"], run.config.train.seq_len) for run in ended)
    [(most, _)] = places.most_common(1)
    params, length = most
    alike = [run for run in ended if (run.result["params"], run.config.train.seq_len) == most]
    return alike, f"{params:,} parameters and length {length}"


# -- lines -----------------------------------------------------------------------------------------


def _line(label: str, fitted: Fit) -> dict[str, str | None]:
    slopes = dict(zip(fitted.axes, fitted.slopes, strict=True))
    return {
        "variant": label,
        "differences": str(fitted.count),
        **{f"per doubling of {axis}": f"{slopes[axis]:+.4f}" for axis in slopes},
        "sd of residual (df)": f"{fitted.deviation:.4f} ({fitted.df})",
        "p of a line": _p(fitted),
    }


def _range(found: Mapping[str, Fit], axis: str) -> str:
    least = min(fitted.ranges[axis][0] for fitted in found.values())
    most = max(fitted.ranges[axis][1] for fitted in found.values())
    return f"{least:,.0f} to {most:,.0f}" if least < most else f"{least:,.0f}"


def _limits(found: Mapping[str, Fit], runs: Sequence[Run]) -> str:
    """Describe the limits of the lines, and name the runs that are in none of them."""
    varied = {axis for fitted in found.values() for axis in fitted.axes}
    fixed = [axis for axis in AXES if axis not in varied]
    said = [
        "The lines describe only the tested range. The fit assumes independent differences, but "
        "runs of one seed start from the same weights at every budget. Only runs with at least "
        f"{LEAST_WARMUP} steps of warmup are included."
    ]
    if fixed:
        said.append(f"Not varied: {' and '.join(fixed)}.")
    diverged = sorted(run.where for run in runs if run.status == "diverged")
    if diverged:
        said.append(f"Excluded because they diverged: {', '.join(diverged)}.")
    return " ".join(said)


# -- crossings -------------------------------------------------------------------------------------


def _crossings(alike: Sequence[Run], place: str) -> list[str]:
    """Return the table of crossings of two variants, as tokens grow at one size and length."""
    lines = []
    for a, b in PASSES:
        # b's loss minus a's, over the blocks that have both.
        table = differences(alike, a)
        fitted = fit(table[table["pe"] == b])
        if fitted is None or fitted.axes != ("tokens",):
            continue
        [slope] = fitted.slopes
        [error] = fitted.slope_errors
        low, high = slope - fitted.quantile * error, slope + fitted.quantile * error
        least, most = fitted.ranges["tokens"]
        lines.append(
            {
                "pair": f"{b} minus {a}",
                "differences": str(fitted.count),
                "line at the fewest tokens": _at(fitted, least),
                "at the most": _at(fitted, most),
                "per doubling of tokens": f"{slope:+.4f} ({low:+.4f} to {high:+.4f})",
                "p of a line": _p(fitted),
                "0 at tokens": _zero(fitted),
            }
        )
    if not lines:
        return []
    return [
        f"**Crossings: the difference between two rows as a line in log tokens, at {place}.** "
        "The 95 % intervals are not adjusted for the number of pairs; those of crossings are "
        "Fieller's. If budgets deviate from a line by more than seeds of one budget differ (F test "
        "of lack of fit, at 5 %), the line is rejected and no crossing is given.",
        markdown_table(pd.DataFrame(lines)),
    ]


def _at(fitted: Fit, tokens: float) -> str:
    return f"{fitted.line({'tokens': tokens}):+.4f} at {millions(tokens)}"


def _p(fitted: Fit) -> str | None:
    return None if fitted.p_straight is None else spell_p(fitted.p_straight)


def _zero(fitted: Fit) -> str:
    """Describe where a line in tokens is 0; places outside the tested range are not quantified."""
    if fitted.is_bent:
        return "unclear: not a straight line"
    crossing = fitted.crossing()
    if crossing is None:
        return "unclear: the slope may be 0"

    least, most = fitted.ranges["tokens"]
    spelled = []
    for tokens in crossing:
        is_outside = not least <= tokens <= most
        side = f"before {millions(least)}" if tokens < least else f"after {millions(most)}"
        spelled.append(side if is_outside else millions(tokens))
    place, low, high = spelled
    beyond = "" if least <= crossing[0] <= most else "outside the tested range: "
    return f"{beyond}{place} ({low if low == high else f'{low} to {high}'})"
