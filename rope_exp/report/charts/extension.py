"""Figure of longer contexts: the loss by length, as trained and with frequencies for that length.

The input is the answers to the probe `extension` (evaluation/extension.py).
"""

import altair as alt
import pandas as pd

from rope_exp.config.tasks import TEXT_UNIT
from rope_exp.report.charts.style import explanation
from rope_exp.report.charts.svg import INK
from rope_exp.report.content import Report
from rope_exp.report.probed import METHOD_NAMES, PAIR_NAMES, extended_losses
from rope_exp.report.spelling import seeds

_PANEL = {"width": 195, "height": 165}
# After Paul Tol's "high contrast" and "muted" schemes.
_METHODS = {
    "as_trained": (INK, "circle"),
    "interpolation": ("#BB5566", "triangle-down"),
    "ntk_aware": ("#C8961E", "square"),
    "yarn": ("#004488", "diamond"),
}
_DASHES = {"": [1, 0], "qk": [1, 0], "vo": [5, 3], "qkvo": [1, 2]}


def extension(report: Report) -> alt.FacetChart | None:
    """Draw a row's mean losses by length, a line for each method and its sites; None without."""
    table = points(report)
    if table.empty:
        return None

    factors = sorted(set(table["factor"]))
    x = alt.X("factor:Q", title="window (training lengths)").scale(type="log", base=2, nice=False)
    x = x.axis(values=factors, labelExpr="datum.label + '×'")
    y = alt.Y("loss:Q", title=f"loss ({TEXT_UNIT})").scale(zero=False).axis(tickCount=4, grid=True)

    methods = [METHOD_NAMES[each] for each in _METHODS]
    colors, shapes = zip(*_METHODS.values(), strict=True)
    top = alt.Legend(title=None, orient="top")
    base = alt.Chart().encode(
        x=x,
        y=y,
        color=alt.Color("method:N", legend=top).scale(domain=methods, range=list(colors)),
        detail=alt.Detail("sites:N"),
    )
    extended = [name for name in PAIR_NAMES.values() if name in set(table["sites"])]
    dashes = [_DASHES[sites] for sites, name in PAIR_NAMES.items() if name in extended]
    of_sites = alt.Legend(title=None, orient="top", values=extended)
    dash = alt.StrokeDash("sites:N", legend=of_sites).scale(
        domain=["", *extended], range=[_DASHES[""], *dashes]
    )
    shape = alt.Shape("method:N", legend=top).scale(domain=methods, range=list(shapes))

    counts = seeds(len(found) for found in report.answers("extension").values())
    sentences = [
        f"Held-out windows, in training lengths ({counts} per row). Colour: method that extends "
        "the frequencies to longer windows. Dash: sites that rotate at these frequencies; other "
        "sites rotate as trained. YaRN also sharpens the scores if it extends q and k."
    ]
    layers = alt.layer(
        base.mark_line(strokeWidth=1.2).encode(strokeDash=dash),
        base.mark_point(filled=True, size=22, opacity=1).encode(shape=shape),
        data=table,
        **_PANEL,
    )
    return layers.facet(
        facet=alt.Facet("name:N", title=None, sort=list(table["name"].unique())),
        columns=3,
        title=explanation(sentences),
    )


def points(report: Report) -> pd.DataFrame:
    """Return mean losses over runs: columns name, method, sites, factor (of the length), loss."""
    found = extended_losses(report)
    found["name"] = found["row"].map({label: row.name for label, row in report.rows.items()})
    found["method"] = found["method"].map(METHOD_NAMES)
    found["sites"] = found["sites"].map(PAIR_NAMES).fillna("")
    by = ["name", "method", "sites", "factor"]
    return found.groupby(by, sort=False)["loss"].mean().reset_index()
