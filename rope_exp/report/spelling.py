"""How values are spelled: several as a span, millions, and a frame as a table in Markdown."""

from collections.abc import Iterable

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
    rows = [list(map(str, frame.columns)), ["---"] * len(frame.columns)]
    for values in frame.itertuples(index=False):
        rows.append([NOTHING if pd.isna(x) else _spelled(x, form) for x in values])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _spelled(value: object, form: str) -> str:
    return format(value, form) if isinstance(value, float) else str(value)
