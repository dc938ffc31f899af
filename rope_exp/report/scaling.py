"""What the ladders of size, tokens and length say, and how little of that reaches 1B parameters."""

from collections.abc import Mapping, Sequence

import pandas as pd

from rope_exp.evidence import published
from rope_exp.evidence.ladders import AXES, Fit, fits
from rope_exp.evidence.runs import Run
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
