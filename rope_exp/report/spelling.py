"""Formatting of values, and tables of a frame: its columns for readers, in Markdown."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd

from rope_exp.config.run import RunConfig

NOTHING = "—"


class Column(NamedTuple):
    """A column of a frame, for readers.

    Attributes:
        heading: above it.
        key: the column of the frame that it shows, and that it sorts by.
        form: the format of its numbers; empty: text, which is aligned left.
        text: returns a cell's text from its line of the frame, instead of `form`.
    """

    heading: str
    key: str
    form: str = ""
    text: Callable[[Mapping[Any, Any]], str] | None = None

    def spell(self, line: Mapping[Any, Any]) -> str:
        """Return a cell's text; a dash for a missing value."""
        value = self.text(line) if self.text else number(line[self.key], self.form)
        return value or NOTHING


def number(value: Any, form: str = "") -> str:
    """Return a value as text: empty if it is missing, and 0 without a sign."""
    if pd.isna(value):
        return ""
    return format(value, form if value else form.removeprefix("+"))


def interval(low: float, high: float, form: str = "+.4f") -> str:
    """Return an interval as text; empty if it is missing."""
    return "" if pd.isna(low) else f"{low:{form}} to {high:{form}}"


def csv_of(frame: pd.DataFrame, *, signed: bool = False) -> str:
    """Return a frame as CSV, with six decimals and empty cells for missing values.

    A p-value that would read 0.000000 has three significant digits.

    Args:
        signed: whether differences (`delta...`) that are positive have a plus.
    """
    told = frame.copy()
    for name in told.columns[told.dtypes == "float64"]:
        form = "+.6f" if signed and "delta" in name else ".6f"
        is_p = name == "p" or name.startswith("p_")
        told[name] = [f"{x:.2e}" if is_p and 0 < x < 5e-7 else number(x, form) for x in told[name]]
    return told.to_csv(index=False)


def cells(columns: Sequence[Column], frame: pd.DataFrame) -> list[list[str]]:
    """Return the headings, and then the cells of each line, as text."""
    lines = frame.to_dict("records")
    headings = [column.heading for column in columns]
    return [headings, *([column.spell(line) for column in columns] for line in lines)]


def sides(columns: Iterable[Column]) -> str:
    """Return the alignment of columns: "<" for text, and ">" for numbers."""
    return "".join(">" if column.form else "<" for column in columns)


def markdown_of(columns: Sequence[Column], frame: pd.DataFrame) -> str:
    """Return columns of a frame as a Markdown table."""
    return markdown_lines(cells(columns, frame), sides(columns))


def markdown_table(frame: pd.DataFrame, form: str = "") -> str:
    """Return a whole frame as a Markdown table: floats by `form`, missing values as a dash."""
    lines = [list(map(str, frame.columns))]
    for values in frame.itertuples(index=False):
        lines.append([NOTHING if pd.isna(x) else _spelled(x, form) for x in values])
    return markdown_lines(lines, "<" * len(frame.columns))


def markdown_lines(lines: Sequence[Sequence[str]], aligned: str) -> str:
    """Return a Markdown table: headings, then cells; `aligned` has "<" or ">" for each column."""
    rule = ["---" if side == "<" else "---:" for side in aligned]
    return "\n".join(f"| {' | '.join(line)} |" for line in [lines[0], rule, *lines[1:]])


def span(values: Iterable[float], form: str = "") -> str:
    """Format values as "least to greatest", a single value as itself, and none as empty text."""
    ends = sorted(values)
    return " to ".join(dict.fromkeys(format(value, form) for value in (*ends[:1], *ends[-1:])))


def seeds(counts: Iterable[int]) -> str:
    """Return the number of seeds as text, or its range if rows differ."""
    spelled = span(counts)
    return "one seed" if spelled == "1" else f"{spelled} seeds"


def corpus_name(config: RunConfig) -> str:
    """Return the short name of a run's corpus."""
    name = str(config.data.name)
    return {"wikipedia-en-good-featured": "English"}.get(name, name)


def setting_name(config: RunConfig) -> str:
    """Return the corpus, tokens and warmup steps of a run: `English, 2M tokens, warmup 100`."""
    # Two digits are enough to distinguish token budgets.
    tokens = millions(float(f"{config.train.num_tokens:.2g}"))
    return f"{corpus_name(config)}, {tokens} tokens, warmup {config.num_warmup_steps}"


def millions(count: float) -> str:
    """Format a number of tokens or parameters in millions or billions."""
    if count >= 999.5e6:
        return f"{count / 1e9:.3g}B"
    return f"{count / 1e6:.3g}M"


def _spelled(value: object, form: str) -> str:
    return format(value, form) if isinstance(value, float) else str(value)
