"""Tables in Markdown from frames, for what is not one line a row of the comparison."""

import pandas as pd


def markdown_table(frame: pd.DataFrame, form: str = "") -> str:
    """Spell a frame in Markdown, its fractions by `form`; an empty text stands for nothing."""
    rows = [list(map(str, frame.columns)), ["---"] * len(frame.columns)]
    for values in frame.itertuples(index=False):
        rows.append([format(x, form) if isinstance(x, float) else str(x) for x in values])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
