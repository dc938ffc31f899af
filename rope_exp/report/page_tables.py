"""The tables of the page: cells have a displayed text and a sort key."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd

from rope_exp.report.spelling import Column, sides


class Cell(NamedTuple):
    """A cell: its text, a key to sort by (None: the text; empty: missing), and a link."""

    text: str
    key: str | None = None
    link: str = ""


class Table(NamedTuple):
    """A table: headings, the alignment of columns as in `spelling.sides`, and lines of cells."""

    headings: list[str]
    sides: str
    lines: list[list[Cell]]


def page_table(columns: Sequence[Column], frame: pd.DataFrame) -> Table:
    """Return columns of a frame as a table of the page."""
    lines = [[_cell(column, line) for column in columns] for line in frame.to_dict("records")]
    return Table([column.heading for column in columns], sides(columns), lines)


def _cell(column: Column, line: Mapping[Any, Any]) -> Cell:
    text = column.spell(line)
    value = line[column.key]
    if pd.isna(value) or value == "":
        return Cell(text, key="")
    key = f"{value:.7g}" if isinstance(value, float) else str(value)
    return Cell(text, key=None if key == text else key)
