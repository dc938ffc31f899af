"""The file scaling.md: differences along size, tokens and length, and their limits at 1B."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath

import pandas as pd

from rope_exp.evidence import published
from rope_exp.evidence.comparable import comparable
from rope_exp.evidence.ladders import AXES, LEAST_WARMUP, Fit, fit_pair, fits, warmed_up
from rope_exp.evidence.runs import ReportError, Run
from rope_exp.evidence.significance import MARGIN, SIGNS
from rope_exp.report.orders import orders
from rope_exp.report.paper.ladder import ladder
from rope_exp.report.paper.style import files_of
from rope_exp.report.passes import passes_within
from rope_exp.report.sentences import spell_p
from rope_exp.report.spelling import markdown_table, millions

# The campaigns of a ladder, and the keys in which their cells may differ beside the variant.
LADDERS = ("warmup", "tokens", "length", "size")
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

# The assumed place of the published table. It gives about 1B parameters, but no tokens or length;
# these are from the sequel by the same author.
PUBLISHED_AT = {"parameters": 1e9, "tokens": 16e9, "length": 4096.0}

BEYOND = "beyond what the data carry"
BENT = "it is no straight line"


def scaling_files(runs: Sequence[Run]) -> dict[str, bytes]:
    """Return scaling.md of the ladders' runs and its figure; empty if nothing can be fitted.

    Runs with a shorter warmup than LEAST_WARMUP are left out.

    Raises:
        ReportError: two runs belong to one cell, or differ in more than variant, seed, size, budget
            and length.
    """
    runs = warmed_up(runs)
    if runs:
        comparable(runs, ["pe", *VARIED])
        _check_once(runs)
    found = fits(runs, published.REFERENCE)
    if not found:
        return {}

    alike, place = _of_one_place(runs)
    campaigns = dict.fromkeys(run.group for run in runs)
    ranges = [f"{axis} {_range(found, axis)}" for axis in AXES]
    parts = [
        f"**The difference to {published.REFERENCE} as a line in logarithms, fitted to the "
        f"differences within blocks of {', '.join(campaigns)}: {', '.join(ranges)}.** Nats per "
        "token; slopes are nats a doubling.",
        markdown_table(pd.DataFrame([_line(label, fitted) for label, fitted in found.items()])),
        _weakness(found, runs),
        *_crossings(alike, place),
        *passes_within(alike, place),
        *orders(runs, alike[0].config.train.seq_len),
        *_relations(runs),
    ]
    drawn = files_of("ladder_tokens", ladder(alike, "train.num_steps"))
    parts += [f"![{PurePosixPath(name).stem}]({name})" for name in drawn if name.endswith("png")]
    return {"scaling.md": ("\n\n".join(parts) + "\n").encode(), **drawn}


def _check_once(runs: Sequence[Run]) -> None:
    """Refuse two runs of one variant and seed at one place of the axes.

    Raises:
        ReportError: there are two, e.g. runs that differ in another key of VARIED.
    """
    known: dict[tuple[str, int, int, int, int], Run] = {}
    for run in runs:
        if run.loss is not None:
            train = run.config.train
            label, seed, params = run.config.pe.label, run.config.seed, run.result["params"]
            place = (label, seed, params, train.num_tokens, train.seq_len)
            other = known.setdefault(place, run)
            if other is not run:
                raise ReportError(
                    f"{other.where} and {run.where} are of one variant, seed, size, budget and "
                    "length, and a ladder has one such run"
                )


def _line(label: str, fitted: Fit) -> dict[str, str | None]:
    slopes = dict(zip(fitted.axes, fitted.slopes, strict=True))
    line: dict[str, str | None] = {
        "variant": label,
        "differences": str(fitted.count),
        **{f"per doubling of {axis}": f"{slopes[axis]:+.4f}" for axis in slopes},
        "sd of residual (df)": f"{fitted.deviation:.4f} ({fitted.df})",
        "p of a line": _p(fitted),
    }
    if _reaches(fitted):
        value, interval = _at_published(fitted)
        theirs = published.TABLE.losses.get(label)
        reference = published.TABLE.losses[published.REFERENCE]
        line |= {
            "the line at 1B, 16B tokens, length 4096": value,
            "95 % prediction interval, if the line goes on": interval,
            "published": None if theirs is None else f"{theirs - reference:+.3f}",
        }
    return line


def _at_published(fitted: Fit) -> tuple[str, str | None]:
    """Return a line's prediction at the published setting with its interval; `BENT` if bent."""
    if fitted.is_bent:
        return BENT, None
    value, low, high = fitted.predict(PUBLISHED_AT)
    return f"{value:+.2f}", f"{low:+.2f} to {high:+.2f}"


def _reaches(fitted: Fit) -> bool:
    """Return whether a fit has all axes, as the published setting differs on every one."""
    return fitted.axes == AXES


# -- as tokens grow --------------------------------------------------------------------------------


def _crossings(alike: Sequence[Run], place: str) -> list[str]:
    """Return the table of crossings of two variants, as tokens grow at one size and length."""
    lines = []
    for a, b in published.PASSES:
        fitted = fit_pair(alike, a, b)
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
                "the line at the fewest tokens": _at(fitted, least),
                "at the most": _at(fitted, most),
                "a doubling of tokens": f"{slope:+.4f} ({low:+.4f} to {high:+.4f})",
                "p of a line": _p(fitted),
                "0 at tokens": _spelled(fitted),
            }
        )
    if not lines:
        return []
    return [
        f"**Who passes whom: the difference of two rows as a line in log tokens, at {place}.** "
        "With 95 % intervals, each of one pair alone (of the crossing: Fieller's). Where budgets "
        "lie further off a line than seeds of one budget part (F test of lack of fit, at 5 %), it "
        "is none, and tells no crossing: the order at each size and budget, below, has its own.",
        markdown_table(pd.DataFrame(lines)),
    ]


def _at(fitted: Fit, tokens: float) -> str:
    return f"{fitted.line({'tokens': tokens}):+.4f} at {millions(tokens)}"


def _p(fitted: Fit) -> str | None:
    return None if fitted.p_straight is None else spell_p(fitted.p_straight)


def _spelled(fitted: Fit) -> str:
    """Describe where a line in tokens is 0; places outside the tested range are not quantified."""
    if fitted.is_bent:
        return f"not to be told: {BENT}"
    crossing = fitted.crossing()
    if crossing is None:
        return "not to be told: the slope may be 0"

    least, most = fitted.ranges["tokens"]
    spelled = []
    for tokens in crossing:
        is_outside = not least <= tokens <= most
        side = f"before {millions(least)}" if tokens < least else f"after {millions(most)}"
        spelled.append(side if is_outside else millions(tokens))
    place, low, high = spelled
    beyond = "" if least <= crossing[0] <= most else "beyond what was run: "
    return f"{beyond}{place} ({low if low == high else f'{low} to {high}'})"


def _of_one_place(runs: Sequence[Run]) -> tuple[list[Run], str]:
    """Return the runs of the most common size and length, and these in words."""
    places = Counter((run.result["params"], run.config.train.seq_len) for run in runs if run.result)
    [(most, _)] = places.most_common(1)
    params, length = most
    alike = [
        run
        for run in runs
        if run.result and (run.result["params"], run.config.train.seq_len) == most
    ]
    return alike, f"{params:,} parameters and length {length}"


# -- at 1B parameters ------------------------------------------------------------------------------


def _relations(runs: Sequence[Run]) -> list[str]:
    """Return the table of the lines' predictions for the published relations."""
    lines: list[dict[str, str | None]] = []
    for a, sign, b in published.TABLE.relations:
        fitted = fit_pair(runs, a, b)
        if fitted is None:
            continue
        line: dict[str, str | None] = {"published": f"{a} {sign} {b}"}
        if _reaches(fitted):
            _, low, high = fitted.predict(PUBLISHED_AT)
            line["the line"], line["95 % prediction interval"] = _at_published(fitted)
            line["says"] = BEYOND if fitted.is_bent else _said(sign, low, high)
        else:
            missing = [axis for axis in AXES if axis not in fitted.axes]
            line["says"] = f"{BEYOND}: none in {' and '.join(missing)}"
        lines.append(line)
    if not lines:
        return []
    return [
        "**The published relations at 1B parameters, 16B tokens and length 4,096, if the lines go "
        "on:** the second's loss minus the first's, each judged alone.",
        markdown_table(pd.DataFrame(lines)),
    ]


def _said(sign: str, low: float, high: float) -> str:
    """Judge a published sign by the prediction interval of a difference."""
    if sign == SIGNS["equivalent"]:
        is_within = low > -MARGIN and high < MARGIN
        is_beyond = low > MARGIN or high < -MARGIN
    else:
        is_within = low > 0
        is_beyond = high < 0
    if is_within:
        return "predicted"
    return "contradicted" if is_beyond else BEYOND


# -- words -----------------------------------------------------------------------------------------


def _range(found: Mapping[str, Fit], axis: str) -> str:
    least = min(fitted.ranges[axis][0] for fitted in found.values())
    most = max(fitted.ranges[axis][1] for fitted in found.values())
    return f"{least:,.0f} to {most:,.0f}" if least < most else f"{least:,.0f}"


def _weakness(found: Mapping[str, Fit], runs: Sequence[Run]) -> str:
    """Describe the limits of the lines, and name the runs that are in none of them."""
    varied = {axis for fitted in found.values() for axis in fitted.axes}
    fixed = [axis for axis in AXES if axis not in varied]
    said = [
        "The published setting lies many doublings outside of what was run, and nothing shows that "
        "a straight line goes on so far: the interval is that of the line's own noise, not of that "
        "doubt. It supports no statement about 1B parameters.",
        "Runs of one seed begin alike at every budget, so that their differences are not quite "
        "independent, as the intervals take them to be.",
        f"Only runs that warmed up over {LEAST_WARMUP} updates or more are on a line.",
    ]
    if fixed:
        said.append(f"Nothing varied in {' and '.join(fixed)}: of another, the lines say nothing.")

    diverged = sorted(run.where for run in runs if run.status == "diverged")
    if diverged:
        said.append(f"Diverged, and in no line: {', '.join(diverged)}.")
    return " ".join(said)
