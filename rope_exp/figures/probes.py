"""Figure of losses of finished models by position and window, and under shift and ablation."""

from typing import Any

import altair as alt
import pandas as pd

from rope_exp.figures import _style as style
from rope_exp.report import Figure, Report
from rope_exp.sections import SITES

# The titles and axes of panels, by the name of their numbers.
_PANELS = {
    "bins": (
        "loss by position, minus {}'s",
        alt.X("place:Q", title="position (tokens)")
        .scale(type="log", nice=False)
        .axis(format=",", values=[1, 10, 100, 1000, 10_000]),
    ),
    "positions": (
        "loss over whole windows",
        alt.X("place:O", title="window (training lengths)", axis=alt.Axis(labelAngle=0)),
    ),
    "shift": (
        "added loss, shifted start",
        alt.X("place:O", title="first position", axis=alt.Axis(format=",", labelAngle=0)),
    ),
    "ablation": (
        "added loss, ablated site",
        alt.X("place:N", title="site")
        .scale(domain=list(SITES))
        .axis(labelExpr="upper(datum.value)", labelAngle=0, grid=False),
    ),
}


def figure(report: Report) -> alt.HConcatChart | None:
    """Draw a panel for each probe, with a line or markers for each row; None without answers."""
    panels = {}
    rows: set[str] = set()
    for name, (title, x) in _PANELS.items():
        table = points(report, name)
        if table.empty:
            continue
        rows |= {*table["label"]}
        y = alt.Y("value:Q", title=None).scale(zero=False).axis(tickCount=4)
        if name != "positions":
            y = y.scale(domain=style.limits(table["value"]), nice=False)
            y = y.axis(labelExpr=style.SIGNED)
        base = style.with_looks(report, table).encode(x=x, y=y)

        layers = [] if name == "positions" else [style.zero_line()]
        if name == "ablation":
            base = base.encode(xOffset=alt.XOffset("label:N", sort=list(report.rows)))
        else:
            layers.append(style.row_lines(base, 1.2))
        if name == "bins":
            rule = alt.Chart().mark_rule(style="quiet", strokeDash=[4, 3])
            trained = alt.XDatum(report.runs[0].config.train.seq_len, type="quantitative")
            layers.append(rule.encode(x=trained))
        else:
            layers += style.markers(base, size=25)
        title = title.format(report.reference.name)
        panels[name] = alt.layer(*layers, width=250, height=190, title=title)
    if not panels:
        return None

    key = style.key_of(report, [label for label in report.rows if label in rows])
    counts = [sum(bool(run.probes) for run in row.runs) for row in report.rows.values()]
    sentences = (
        f"Group {report.groups}; {style.seeds(counts)} per row; losses in {report.unit}.",
        "By position: bins of half an octave, at their first position. Dashed: training length.",
        "Relative variants do not depend on the first position.",
        "Ablated site: its rotation is switched off in the trained model.",
    )
    title = style.explanation(sentences)
    return alt.hconcat(alt.concat(*panels.values(), columns=2), key, title=title)


def points(report: Report, name: str) -> pd.DataFrame:
    """Return a panel's points, means over seeds: columns label, place and value.

    Losses by position are differences to the reference within a seed, and others are those added.
    """
    probe = "positions" if name == "bins" else name
    # A line for each seed, a column for each place. One place is "", so [name] would not do.
    tables: dict[str, Any] = {
        label: numbers.xs(name, axis="columns", level="probe")
        for label, numbers in report.numbers(probe).items()
    }
    base = tables.get(report.reference.label, pd.DataFrame())
    means: dict[str, Any] = {}
    for label, losses in tables.items():
        if name == "positions":
            means[label] = losses.mean()
        elif name != "bins":
            # The first place is as trained.
            means[label] = losses.sub(losses.iloc[:, 0], axis="index").iloc[:, 1:].mean()
        elif losses.columns.equals(base.columns):
            # Other places would mean other windows, and so other tokens.
            means[label] = (losses - base).mean()

    table = pd.DataFrame(means).rename_axis("place").reset_index()
    table = table.melt("place", var_name="label").dropna()
    if name == "bins":
        # On a log axis, positions count from 1.
        table["place"] += 1
    elif name == "positions":
        table["place"] /= report.runs[0].config.train.seq_len
    return table


FIGURE = Figure(order=4, draw=figure)
