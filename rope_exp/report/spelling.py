"""Formatting of values: spans, counts in millions, and Markdown tables."""

from collections.abc import Iterable, Sequence

import pandas as pd

NOTHING = "—"


def span(values: Iterable[float], form: str = "") -> str:
    """Format values as "least to greatest", a single value as itself, and none as empty text."""
    ends = sorted(values)
    return " to ".join(dict.fromkeys(format(value, form) for value in (*ends[:1], *ends[-1:])))


def millions(count: float) -> str:
    """Format a number of tokens or parameters in millions or billions."""
    if count >= 999.5e6:
        return f"{count / 1e9:.3g}B"
    return f"{count / 1e6:.3g}M"


def markdown_table(frame: pd.DataFrame, form: str = "") -> str:
    """Format a frame in Markdown: floats by `form`, missing values as a dash."""
    lines = [list(map(str, frame.columns))]
    for values in frame.itertuples(index=False):
        lines.append([NOTHING if pd.isna(x) else _spelled(x, form) for x in values])
    return markdown_lines(lines, "<" * len(frame.columns))


def markdown_lines(lines: Sequence[Sequence[str]], sides: str) -> str:
    """Format a table in Markdown: titles, then cells; `sides` aligns each column ("<" or ">")."""
    rule = ["---" if side == "<" else "---:" for side in sides]
    return "\n".join(f"| {' | '.join(line)} |" for line in [lines[0], rule, *lines[1:]])


def _spelled(value: object, form: str) -> str:
    return format(value, form) if isinstance(value, float) else str(value)
