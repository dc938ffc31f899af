"""How values are spelled: several as a span, millions, and lines or a frame as a Markdown table."""

from collections.abc import Iterable, Sequence

import pandas as pd

NOTHING = "—"


def span(values: Iterable[float], form: str = "") -> str:
    """Spell the least and the greatest of some values, or the one that there is, or nothing."""
    ends = sorted(values)
    return " to ".join(dict.fromkeys(format(value, form) for value in (*ends[:1], *ends[-1:])))


def millions(count: float) -> str:
    """Spell a number of tokens or parameters in millions, or in billions."""
    if count >= 999.5e6:
        return f"{count / 1e9:.3g}B"
    return f"{count / 1e6:.3g}M"


def markdown_table(frame: pd.DataFrame, form: str = "") -> str:
    """Spell a frame in Markdown, its fractions by `form`; a dash where there is nothing."""
    lines = [list(map(str, frame.columns))]
    for values in frame.itertuples(index=False):
        lines.append([NOTHING if pd.isna(x) else _spelled(x, form) for x in values])
    return markdown_lines(lines, "<" * len(frame.columns))


def markdown_lines(lines: Sequence[Sequence[str]], sides: str) -> str:
    """Spell a table in Markdown: titles, then cells, each column at its side ("<" or ">")."""
    rule = ["---" if side == "<" else "---:" for side in sides]
    return "\n".join(f"| {' | '.join(line)} |" for line in [lines[0], rule, *lines[1:]])


def _spelled(value: object, form: str) -> str:
    return format(value, form) if isinstance(value, float) else str(value)
