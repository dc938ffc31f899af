"""The rows of a report as data for charts: their words, and their looks."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import altair as alt
import pandas as pd

from rope_exp.report.content import Line, Report
from rope_exp.report.looks import look
from rope_exp.report.tables import WORDS

LOOKS = "looks"
COLOR = alt.Color("color:N", scale=None)
DASH = alt.StrokeDash("dash:N", scale=None)


def in_words(report: Report, row: Line) -> dict[str, Any]:
    """Return a row's differences, and the words about them.

    Intervals are the table's own: in full in `difference`, and half of its width in `half`.
    """
    delta = row.ours.delta
    words: dict[str, Any] = {
        "label": row.label,
        "name": row.name,
        "delta": delta,
        "theirs": row.theirs.delta,
        "number": signed(delta),
        "difference": signed(delta),
        "half": "",
        "seeds": row.verdict or f"{row.ours.num_seeds} {row.mark}".rstrip(),
        "published": signed(row.theirs.delta, digits=3),
    }
    word = "no shared seed" if delta is None else "untested"
    if judged := report.decided.get(row.label):
        words["difference"] += f" [{signed(judged.low)}, {signed(judged.high)}]"
        words["half"] = f"± {judged.high - judged.delta:.4f} "
        word = WORDS[judged.verdict]
    elif row.label == report.reference.label:
        word = "reference"
        words["published"] = ""
    return words | {"verdict": row.verdict or f"{word} {row.mark}".rstrip()}


def signed(value: float | None, digits: int = 4) -> str:
    """Return a difference with its sign; empty for None."""
    if value is None:
        return ""
    return f"{value:+.{digits}f}".replace("-", "−") if value else "0"


def with_looks(table: pd.DataFrame) -> alt.Chart:
    """Return a chart of a table with a column `label`, and columns for the looks of the rows."""
    fields = ["color", "dash", "outline", "filled"]
    found = alt.LookupData(alt.NamedData(LOOKS), key="label", fields=fields)
    return alt.Chart(table).transform_lookup("label", from_=found)


def looks(report: Report) -> dict[str, list[dict[str, Any]]]:
    """Return the data set of `with_looks`, for the whole chart: Altair copies that of a part."""
    rows = report.rows.values()
    return {LOOKS: [{"label": row.label, **look(row.label, row.number)} for row in rows]}


def row_lines(base: alt.Chart, width: float, *details: str, clip: bool = False) -> alt.Chart:
    """Draw a line for each row, or for each combination of these fields."""
    detail = [alt.Detail(field) for field in details or ("label:N",)]
    line = base.mark_line(clip=clip, strokeWidth=width)
    return line.encode(color=COLOR, strokeDash=DASH, detail=detail)


def markers(base: alt.Chart, size: int) -> Iterator[alt.Chart]:
    """Draw markers: the outline on white, and the part that is filled."""
    mark = base.mark_point(clip=True, size=size, opacity=1, strokeWidth=1.2, fill="white")
    shape = alt.Shape("outline:N", scale=None)
    yield mark.encode(shape=shape, stroke=alt.Stroke("color:N", scale=None))

    mark = base.mark_point(clip=True, size=size, opacity=1, strokeWidth=0)
    shape = alt.Shape("filled:N", scale=None)
    yield mark.encode(shape=shape, fill=alt.Fill("color:N", scale=None))


def gathered(tables: Iterable[pd.DataFrame], columns: list[str]) -> pd.DataFrame:
    """Return the lines of all tables; those without any would change the types of columns."""
    found = [table for table in tables if len(table)]
    return pd.concat(found) if found else pd.DataFrame(columns=columns)


def key_of(rows: Sequence[Line]) -> alt.LayerChart:
    """Return a list of the rows' markers and names, to stand beside a chart."""
    table = pd.DataFrame([{"label": row.label, "name": row.name} for row in rows])
    y = alt.Y("name:N", axis=None, sort=list(table["name"]))
    base = with_looks(table).encode(x=alt.XValue(8), y=y)
    names = base.mark_text(align="left", dx=14).encode(text=alt.Text("name:N"))
    return alt.layer(*markers(base, size=60), names, width=16, height=alt.Step(17))
