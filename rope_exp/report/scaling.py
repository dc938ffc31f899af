"""What the ladders of size, tokens and length say, and how little of that reaches 1B parameters."""

from collections import Counter
from collections.abc import Mapping, Sequence

import pandas as pd

from rope_exp.evidence import published
from rope_exp.evidence.ladders import AXES, Fit, fit_pair, fits
from rope_exp.evidence.runs import Run
from rope_exp.evidence.significance import MARGIN, SIGNS
from rope_exp.report.spelling import markdown_table

# The campaigns whose cells share corpus, tokenizer, learning rate and schedule.
LADDERS = ("english", "tokens", "length", "size")

# Where the published table may stand: its parameters are given as about 1B, its tokens and length
# are not given, and these are those of the sequel by the same author.
PUBLISHED_AT = {"parameters": 1e9, "tokens": 16e9, "length": 4096.0}


def scaling_files(runs: Sequence[Run]) -> dict[str, bytes]:
    """Return scaling.md of the ladders' runs; nothing where nothing can be fitted."""
    found = fits(runs, published.REFERENCE)
    if not found:
        return {}
    table = pd.DataFrame([_line(label, fitted) for label, fitted in found.items()])
    axes = dict.fromkeys(axis for fitted in found.values() for axis in fitted.axes)
    ranges = [f"{axis} {_range(found, axis)}" for axis in AXES]
    parts = [
        f"**The difference to {published.REFERENCE} as a line in logarithms, fitted to the "
        f"differences within blocks of {', '.join(LADDERS)}: {', '.join(ranges)}.** Nats per "
        "token; slopes are nats a doubling.",
        markdown_table(table),
        _weakness(list(axes)),
        *_crossings(runs),
        *_relations(runs),
    ]
    return {"scaling.md": ("\n\n".join(parts) + "\n").encode()}


def _line(label: str, fitted: Fit) -> dict[str, str]:
    slopes = dict(zip(fitted.axes, fitted.slopes, strict=True))
    value, low, high = fitted.predict(PUBLISHED_AT)
    theirs = published.TABLE.losses.get(label)
    reference = published.TABLE.losses[published.REFERENCE]
    shown = {f"per doubling of {axis}": f"{slopes[axis]:+.4f}" for axis in slopes}
    return {
        "variant": label,
        "differences": str(fitted.df + len(fitted.axes) + 1),
        **shown,
        "sd of residual (df)": f"{fitted.deviation:.4f} ({fitted.df})",
        "the line at 1B, 16B tokens, length 4096": f"{value:+.2f}",
        "95 % prediction interval, if the line goes on": f"{low:+.2f} to {high:+.2f}",
        "published": "—" if theirs is None else f"{theirs - reference:+.3f}",
    }


def _crossings(runs: Sequence[Run]) -> list[str]:
    """Return where one variant passes another, as tokens grow at the size and length of most."""
    places = Counter((run.result["params"], run.config.train.seq_len) for run in runs)
    [((params, length), _)] = places.most_common(1)
    alike = [
        run for run in runs if (run.result["params"], run.config.train.seq_len) == (params, length)
    ]
    lines = []
    for a, b in published.PASSES:
        fitted = fit_pair(alike, a, b)
        if fitted is None or fitted.axes != ("tokens",):
            continue
        [slope] = fitted.slopes
        half = fitted.quantile * fitted.slope_errors[0]
        least, most = fitted.ranges["tokens"]
        line = {"pair": f"{b} minus {a}", "differences": str(fitted.df + 2)}
        for tokens in (least, most):
            line[f"at {_short(tokens)} tokens"] = f"{fitted.line({'tokens': tokens}):+.4f}"
        line["a doubling of tokens"] = f"{slope:+.4f} ({slope - half:+.4f} to {slope + half:+.4f})"
        lines.append({**line, "0 at tokens": _spelled(fitted.crossing())})
    if not lines:
        return []
    return [
        f"**Who passes whom: the difference of two rows as a line in log tokens, at {params:,} "
        f"parameters and length {length}.** With 95 % intervals (of the crossing: Fieller's).",
        markdown_table(pd.DataFrame(lines)),
    ]


def _relations(runs: Sequence[Run]) -> list[str]:
    """Return what the lines say of the published relations at the published size."""
    lines = []
    for a, sign, b in published.TABLE.relations:
        fitted = fit_pair(runs, a, b)
        if fitted is None:
            continue
        value, low, high = fitted.predict(PUBLISHED_AT)
        line = {
            "published": f"{a} {sign} {b}",
            "the line": f"{value:+.3f}",
            "95 % prediction interval": f"{low:+.3f} to {high:+.3f}",
            "says": _said(sign, low, high),
        }
        lines.append(line)
    if not lines:
        return []
    return [
        "**The published relations at 1B parameters, 16B tokens and length 4,096, if the lines go "
        "on:** the second's loss minus the first's.",
        markdown_table(pd.DataFrame(lines)),
    ]


def _said(sign: str, low: float, high: float) -> str:
    """Say what an interval of a difference says of a published sign."""
    if sign == SIGNS["equivalent"]:
        is_within = low > -MARGIN and high < MARGIN
        is_beyond = low > MARGIN or high < -MARGIN
    else:
        is_within = low > 0
        is_beyond = high < 0
    if is_within:
        return "predicted"
    return "contradicted" if is_beyond else "beyond what the data carry"


def _spelled(crossing: tuple[float, float, float] | None) -> str:
    if crossing is None:
        return "not to be told: the slope may be 0"
    return f"{_short(crossing[0])} ({_short(crossing[1])} to {_short(crossing[2])})"


def _short(tokens: float) -> str:
    """Spell a number of tokens in millions, or in powers of ten where it is absurd."""
    millions = tokens / 1e6
    return f"{millions:,.3g}M" if 1e-3 < millions < 1e5 else f"{tokens:.0e}"


def _range(found: Mapping[str, Fit], axis: str) -> str:
    least = min(fitted.ranges[axis][0] for fitted in found.values())
    most = max(fitted.ranges[axis][1] for fitted in found.values())
    return f"{least:,.0f} to {most:,.0f}" if least < most else f"{least:,.0f}"


def _weakness(axes: Sequence[str]) -> str:
    fixed = [axis for axis in AXES if axis not in axes]
    left_out = f" Nothing varied in {' and '.join(fixed)}." if fixed else ""
    return (
        "The published setting lies many doublings outside of what was run, and nothing shows that "
        "a straight line goes on so far: the interval is that of the line's own noise, not of that "
        f"doubt. It supports no statement about 1B parameters.{left_out}"
    )
