"""Tables and numbers as text, in Markdown and CSV."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pandas as pd

from rope_exp.errors import visible

NOTHING = "—"  # a cell without a value


class Column(NamedTuple):
    """A column of a frame, for readers."""

    heading: str
    key: str
    form: str = ""  # of its numbers; empty: text, which is aligned left


@dataclass(frozen=True)
class Table:
    """Columns of a frame, for readers."""

    columns: Sequence[Column]
    frame: pd.DataFrame

    @property
    def cells(self) -> list[list[str]]:
        """The headings, and then the cells of each line, as text; a dash for a missing value."""
        lines = [
            [number(line[column.key], column.form) or NOTHING for column in self.columns]
            for line in self.frame.to_dict("records")
        ]
        return [[column.heading for column in self.columns], *lines]

    def without(self, *keys: str) -> "Table":
        """Return the table without some columns."""
        return Table([column for column in self.columns if column.key not in keys], self.frame)

    def markdown(self) -> str:
        """Return the table in Markdown."""
        # pandas' `to_markdown` would need another package, tabulate.
        headings, *lines = self.cells
        rule = ["---:" if column.form else "---" for column in self.columns]
        rows = []
        for line in [headings, rule, *lines]:
            cells = [cell.replace("|", r"\|") for cell in line]
            rows.append(f"| {' | '.join(cells)} |")
        return "\n".join(rows)


def markdown_table(frame: pd.DataFrame, form: str = "") -> str:
    """Return a whole frame as a Markdown table; `form` formats floats."""
    text = frame.map(lambda value: number(value, form if isinstance(value, float) else ""))
    return Table([Column(key, key) for key in map(str, text)], text).markdown()


def csv_of(frame: pd.DataFrame, *, signed: bool = False) -> str:
    """Return a frame as CSV, with six decimals and empty cells for missing values.

    With `signed`, positive differences (`delta...`) get a plus sign. A p-value that would read
    0.000000 has three significant digits.
    """
    text = frame.copy()
    for name in text.columns[text.dtypes == "float64"]:
        form = "+.6f" if signed and "delta" in name else ".6f"
        is_p = name == "p" or name.startswith("p_")
        text[name] = [f"{x:.2e}" if is_p and 0 < x < 5e-7 else number(x, form) for x in text[name]]
    return text.to_csv(index=False)


def paragraphs(*parts: str) -> str:
    """Return paragraphs in Markdown, without tags."""
    return without_tags("\n\n".join(parts) + "\n")


def without_tags(markdown: str) -> str:
    """Return Markdown in which text from a record is neither a tag of HTML nor a control code."""
    # No other character begins a tag.
    return re.sub(r"<(?=[A-Za-z/!?])", "&lt;", visible(markdown))


def bullets(title: str, items: Sequence[str]) -> list[str]:
    """Return a title and a list, or nothing if the list is empty."""
    if not items:
        return []
    lines = [f"- {' '.join(item.split())}" for item in items]
    return [title, "\n".join(lines)]


def number(value: Any, form: str = "") -> str:
    """Return a value as text: empty if it is missing, and 0 without a sign."""
    if pd.isna(value):
        return ""
    return format(value, form if value else form.removeprefix("+"))


def interval(low: float | None, high: float | None, form: str = "+.4f") -> str:
    """Return an interval as text.

    Args:
        low: its lower end; NaN or None if the interval is missing.
        high: its upper end.
        form: the format of both.
    Returns:
        Empty text if it is missing.
    """
    if pd.isna(low):
        return ""
    return f"{low:{form}} to {high:{form}}"


def span(values: Iterable[float], form: str = "") -> str:
    """Format values as "least to greatest", a single value as itself, and none as empty text."""
    ends = sorted(values)
    texts = [format(value, form) for value in (*ends[:1], *ends[-1:])]
    return " to ".join(dict.fromkeys(texts))


def spell_p(p: float, equals: str = "") -> str:
    """Return a p-value as text.

    Args:
        p: the p-value.
        equals: text before a number, such as " = " after the letter p; not used before "<".
    """
    if p < 0.0001:
        return "< 0.0001"
    return f"{equals}{p:.4f}"


def millions(count: float) -> str:
    """Format a number of tokens or parameters in millions or billions."""
    if count >= 999.5e6:
        return f"{count / 1e9:.3g}B"
    return f"{count / 1e6:.3g}M"
