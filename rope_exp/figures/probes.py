"""Figure 7: losses of finished models by position and window, and under shift and ablation.

Each row has a line of small panels, one for each probe, with the reference in grey.
"""

from collections.abc import Iterator
from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from rope_exp.comparable import Row
from rope_exp.figures.style import SIGNED, explanation, gathered, look
from rope_exp.report import Report, seeds
from rope_exp.sections import SITES

ORDER = 4
_WIDTH = 520
_HEIGHT = 44
# The key of a probe's answers, its places, and its losses there.
_ASKED = {
    "position": ("positions", "edges", "loss"),
    "window": ("positions", "lengths", "loss_at_length"),
    "shift": ("shift", "start", "loss"),
    "ablation": ("ablation", "without", "loss"),
}


def figure(report: Report) -> alt.HConcatChart | None:
    """Draw a line of panels for each row, and a column for each probe; None without answers."""
    tables = {probe: points(report, probe) for probe in _ASKED}
    shown = {probe: table for probe, table in tables.items() if len(table)}
    if not shown:
        return None

    names = [row.name for row in report.rows.values()]
    names = [
        name for name in names if any((table["name"] == name).any() for table in shown.values())
    ]
    columns = [
        _column(report, probe, table, names, _WIDTH // len(shown), is_first=number == 0)
        for number, (probe, table) in enumerate(shown.items())
    ]
    title = explanation(_sentences(report, list(shown)))
    return alt.hconcat(*columns, spacing=14, bounds="full", title=title)


def points(report: Report, probe: str) -> pd.DataFrame:
    """Return a probe's answers: columns label, name, place and value, each a mean over seeds.

    Losses by position are differences to the reference within a seed if there is a reference. A
    row that shares no seed or windows with it is left out. A shift's and an ablation's losses are
    those added.
    """
    key, of, loss = _ASKED[probe]
    answers = {row.label: _losses(row, key, of, loss) for row in report.rows.values()}
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
            values = losses - losses.iloc[0]
            values = values.drop("") if probe == "ablation" else values
        mean = values.dropna(axis="columns", how="all").mean(axis="columns").dropna()
        part = mean.rename("value").rename_axis("place").reset_index()
        parts.append(part.assign(label=label, name=report.rows[label].name))
    return gathered(parts, ["place", "value", "label", "name"])


def _losses(row: Row, key: str, of: str, loss: str) -> pd.DataFrame:
    """Return a row's losses: a line for each place, a column for each seed.

    Runs that were probed at other places than the row's first are left out.
    """
    found = {run.config.seed: run.probes[key] for run in row.runs if key in run.probes}
    places: list[Any] = next(iter(found.values()))[of] if found else []
    same = {seed: answer[loss] for seed, answer in found.items() if answer[of] == places}
    if of == "edges" and places:
        edges = np.array(places, dtype=float)
        # The middle of a bin on the log axis, with positions counted from 1.
        places = list(np.sqrt((edges[:-1] + 1) * edges[1:]))
    return pd.DataFrame(same, index=places, dtype=float)


# -- a column of panels ----------------------------------------------------------------------------


def _column(
    report: Report, probe: str, table: pd.DataFrame, names: list[str], width: int, *, is_first: bool
) -> alt.FacetChart:
    """Draw one probe, with a panel for each row."""
    colors = {label: look(label, row.number)["color"] for label, row in report.rows.items()}
    own = table.assign(panel=table["name"], color=table["label"].map(colors))
    reference = own[own["label"] == report.reference.label].assign(color="#B8B8B8")
    grey = [reference.assign(panel=name) for name in names if name != report.reference.name]
    # A row without answers has an empty panel.
    empty = pd.DataFrame({"panel": names})

    signed = "format(datum.value, '~g')" if probe == "window" else SIGNED
    y = alt.Y("value:Q", title=None).axis(labelExpr=signed, tickCount=3, grid=True)
    y = y.scale(zero=False)
    if probe != "window":
        # At least a hundredth of a nat is shown, as smaller values are rounding noise.
        low, high = own["value"].min(), own["value"].max()
        y = y.scale(domain=[min(low, -0.01), max(high, 0.01)])
    color = alt.Color("color:N", scale=None)
    drawn = alt.Chart().encode(x=_axis(report, probe, table), y=y, color=color)
    if probe == "ablation":
        data = pd.concat([own, empty])
        mark = drawn.mark_bar(width=8)
    else:
        data = pd.concat([*grey, own, empty])
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

    header = alt.Header(
        title=None, labels=is_first, labelAngle=0, labelAlign="left", labelPadding=4
    )
    panels = alt.layer(*layers, data=data, width=width, height=_HEIGHT)
    row = alt.Row("panel:N", sort=names, header=header)
    return panels.facet(row=row, bounds="flush", spacing=12, title=_title(report, probe))


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


def _is_probed(row: Row, key: str) -> bool:
    return any(key in run.probes for run in row.runs)


def _title(report: Report, probe: str) -> str:
    titles = {
        "position": "loss by position",
        "window": "loss over whole windows",
        "shift": "added loss, shifted start",
        "ablation": "added loss, ablated site",
    }
    has_differences = probe == "position" and _is_probed(report.reference, "positions")
    return titles[probe] + (f", minus {report.reference.name}'s" if has_differences else "")


def _sentences(report: Report, shown: list[str]) -> Iterator[str]:
    counts = [sum(bool(run.probes) for run in row.runs) for row in report.rows.values()]
    yield f"Group {report.groups}; {seeds(counts)} per row; losses in {report.unit}."
    keys = [_ASKED[probe][0] for probe in shown if probe != "ablation"]
    if any(_is_probed(report.reference, key) for key in keys):
        yield f"Grey: {report.reference.name}."
    if "position" in shown:
        yield "By position: bins of half an octave. Dashed: training length."
    if "shift" in shown:
        yield "Relative variants do not depend on the first position."
    if "ablation" in shown:
        yield "Ablated site: its rotation is switched off in the trained model."
