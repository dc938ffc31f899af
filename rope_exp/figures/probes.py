"""Figure 7: losses of finished models by position and window, and under shift and ablation.

Each row has a line of small panels, one for each probe, with the reference in grey.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import altair as alt
import numpy as np
import pandas as pd

from rope_exp.comparable import Row
from rope_exp.figures.style import COLOR, SIGNED, explanation, gathered, look
from rope_exp.report import Report
from rope_exp.sections import SITES
from rope_exp.table import seeds

ORDER = 4
_WIDTH = 520
_HEIGHT = 44


class _Column(NamedTuple):
    """A probe's answers: their key, those of the places and losses in them, and words for both."""

    key: str
    places: str
    losses: str
    title: str
    note: str


_COLUMNS = {
    "position": _Column(
        "positions",
        "edges",
        "loss",
        "loss by position",
        "By position: bins of half an octave. Dashed: training length.",
    ),
    "window": _Column("positions", "lengths", "loss_at_length", "loss over whole windows", ""),
    "shift": _Column(
        "shift",
        "start",
        "loss",
        "added loss, shifted start",
        "Relative variants do not depend on the first position.",
    ),
    "ablation": _Column(
        "ablation",
        "without",
        "loss",
        "added loss, ablated site",
        "Ablated site: its rotation is switched off in the trained model.",
    ),
}


def figure(report: Report) -> alt.HConcatChart | None:
    """Draw a line of panels for each row, and a column for each probe; None without answers."""
    tables = {probe: points(report, probe) for probe in _COLUMNS}
    shown = {probe: table for probe, table in tables.items() if len(table)}
    if not shown:
        return None

    probed = {*pd.concat(shown.values())["name"]}
    names = [row.name for row in report.rows.values() if row.name in probed]
    columns = [_column(report, probe, shown, names) for probe in shown]
    title = explanation(_sentences(report, shown))
    return alt.hconcat(*columns, spacing=14, bounds="full", title=title)


def points(report: Report, probe: str) -> pd.DataFrame:
    """Return a probe's answers: columns label, name, place and value, each a mean over seeds.

    Losses by position are differences to the reference within a seed if there is a reference. A
    row that shares no seed or windows with it is left out. A shift's and an ablation's losses are
    those added.
    """
    answers = {row.label: _losses(row, _COLUMNS[probe]) for row in report.rows.values()}
    reference = answers.get(report.reference.label)
    parts = []
    for label, losses in answers.items():
        values = losses
        if probe == "position" and reference is not None and len(reference):
            # Other places mean other windows, and so other tokens.
            is_alike = losses.index.equals(reference.index)
            values = losses - reference if is_alike else losses.iloc[:0]
        elif probe in ("shift", "ablation") and len(losses):
            # The first place is as trained.
            values = (losses - losses.iloc[0]).drop("", errors="ignore")
        mean = values.dropna(axis="columns", how="all").mean(axis="columns").dropna()
        part = mean.rename("value").rename_axis("place").reset_index()
        parts.append(part.assign(label=label, name=report.rows[label].name))
    return gathered(parts, ["place", "value", "label", "name"])


def _losses(row: Row, column: _Column) -> pd.DataFrame:
    """Return a row's losses: a line for each place, a column for each seed.

    Runs that were probed at other places than the row's first are left out.
    """
    found = {
        run.config.seed: run.probes[column.key] for run in row.runs if column.key in run.probes
    }
    places = next(iter(found.values()))[column.places] if found else []
    same = {
        seed: answer[column.losses]
        for seed, answer in found.items()
        if answer[column.places] == places
    }
    if column.places == "edges" and places:
        edges = np.array(places, dtype=float)
        # The middle of a bin on the log axis, with positions counted from 1.
        places = list(np.sqrt((edges[:-1] + 1) * edges[1:]))
    return pd.DataFrame(same, index=places, dtype=float)


# -- a column of panels ----------------------------------------------------------------------------


def _column(
    report: Report, probe: str, shown: Mapping[str, pd.DataFrame], names: list[str]
) -> alt.FacetChart:
    """Draw one probe, with a panel for each row."""
    colors = {label: look(label, row.number)["color"] for label, row in report.rows.items()}
    table = shown[probe]
    own = table.assign(panel=table["name"], color=table["label"].map(colors))
    reference = own[own["label"] == report.reference.label].assign(color="#B8B8B8")
    grey = [reference.assign(panel=name) for name in names if name != report.reference.name]
    # A row without answers has an empty panel.
    empty = pd.DataFrame({"panel": names})
    data = pd.concat([own, empty] if probe == "ablation" else [*grey, own, empty])

    signed = "format(datum.value, '~g')" if probe == "window" else SIGNED
    y = alt.Y("value:Q", title=None).axis(labelExpr=signed, tickCount=3, grid=True)
    y = y.scale(zero=False)
    if probe != "window":
        # At least a hundredth of a nat is shown, as smaller values are rounding noise.
        y = y.scale(domain=[min(own["value"].min(), -0.01), max(own["value"].max(), 0.01)])
    drawn = alt.Chart().encode(x=_axis(report, probe, table), y=y, color=COLOR)
    if probe == "ablation":
        mark = drawn.mark_bar(width=8)
    else:
        point = probe != "position" and alt.OverlayMarkDef(size=14, filled=True)
        mark = drawn.mark_line(strokeWidth=1.4, point=point).encode(detail=alt.Detail("label:N"))

    # A rule is drawn once, not once for each answer.
    rule = alt.Chart().transform_aggregate(count="count()")
    layers = [mark]
    if probe != "window":
        zero = rule.mark_rule(style="zero", opacity=0.4)
        layers.append(zero.encode(y=alt.YDatum(0, type="quantitative")))
    if probe == "position":
        trained = rule.mark_rule(style="quiet", strokeDash=[4, 3])
        length = report.runs[0].config.train.seq_len
        layers.append(trained.encode(x=alt.XDatum(length, type="quantitative")))

    is_first = probe == next(iter(shown))
    header = alt.Header(
        title=None, labels=is_first, labelAngle=0, labelAlign="left", labelPadding=4
    )
    title = _COLUMNS[probe].title
    if probe == "position" and _is_probed(report.reference, probe):
        title += f", minus {report.reference.name}'s"
    panels = alt.layer(*layers, data=data, width=_WIDTH // len(shown), height=_HEIGHT)
    row = alt.Row("panel:N", sort=names, header=header)
    return panels.facet(row=row, bounds="flush", spacing=12, title=title)


def _axis(report: Report, probe: str, table: pd.DataFrame) -> alt.X:
    """Return the axis of a probe's places."""
    if probe == "position":
        axis = alt.Axis(format=",", values=[1, 10, 100, 1000, 10_000])
        scale = alt.Scale(type="log", nice=False)
        return alt.X("place:Q", title="position (tokens)", axis=axis, scale=scale)
    places = sorted(set(table["place"]))
    if probe == "window":
        trained = report.runs[0].config.train.seq_len
        axis = alt.Axis(labelExpr=f"datum.value / {trained} + '×'", values=places)
        scale = alt.Scale(type="log", base=2, nice=False)
        return alt.X("place:Q", title="window (training lengths)", axis=axis, scale=scale)
    if probe == "shift":
        axis = alt.Axis(format=",", labelAngle=0, labelFontSize=10)
        domain = alt.Scale(domain=places)
        return alt.X("place:O", title="first position", sort=places, axis=axis, scale=domain)
    axis = alt.Axis(labelExpr="upper(datum.value)", labelAngle=0)
    return alt.X("place:N", title="site", axis=axis, scale=alt.Scale(domain=list(SITES)))


def _is_probed(row: Row, probe: str) -> bool:
    return any(_COLUMNS[probe].key in run.probes for run in row.runs)


def _sentences(report: Report, shown: Iterable[str]) -> Iterator[str]:
    counts = [sum(bool(run.probes) for run in row.runs) for row in report.rows.values()]
    yield f"Group {report.groups}; {seeds(counts)} per row; losses in {report.unit}."
    if any(_is_probed(report.reference, probe) for probe in shown if probe != "ablation"):
        yield f"Grey: {report.reference.name}."
    yield from filter(None, (_COLUMNS[probe].note for probe in shown))
