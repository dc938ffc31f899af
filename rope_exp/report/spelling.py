"""Tables in Markdown from frames, for what is not one line a row of the comparison."""

import pandas as pd

NOTHING = "—"


def markdown_table(frame: pd.DataFrame, form: str = "") -> str:
    """Spell a frame in Markdown, its fractions by `form`; a dash where there is nothing."""
    rows = [list(map(str, frame.columns)), ["---"] * len(frame.columns)]
    for values in frame.itertuples(index=False):
        rows.append([NOTHING if pd.isna(x) else _spelled(x, form) for x in values])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _spelled(value: object, form: str) -> str:
    return format(value, form) if isinstance(value, float) else str(value)
