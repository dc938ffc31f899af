"""Figure of learned frequencies: the change of each since the start of training.

The input is the answers to the probe `drift` (evaluation/drift.py).
"""

from collections.abc import Mapping
from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from rope_exp.config.variants import PAIRS
from rope_exp.evidence.contrasts import Array
from rope_exp.report.charts.rows import gathered
from rope_exp.report.charts.style import SHADES, explanation, zero_line
from rope_exp.report.content import Report
from rope_exp.report.probed import PAIR_NAMES
from rope_exp.report.spelling import seeds

_PANEL = {"width": 290, "height": 150}


def drift(report: Report) -> alt.ConcatChart | None:
    """Draw ln(theta/theta0) against theta0: a panel for each row and pair of sites, two a line.

    None if no frequency was learned.
    """
    table = points(report)
    if table.empty:
        return None

    x = alt.X("theta0:Q", title="θ at the start (radians per position)")
    x = x.scale(type="log", nice=False).axis(format="~g", values=[1e-4, 1e-3, 0.01, 0.1, 1])
    panels = []
    for _, of_row in table.groupby("label", sort=False):
        # A row's panels share a scale of at least 0.01, so that rounding does not fill them.
        domain = [min(of_row["moved"].min(), -0.01), max(of_row["moved"].max(), 0.01)]
        y = alt.Y("moved:Q", title="ln(θ / θ at the start)").scale(domain=domain)
        y = y.axis(tickCount=4, grid=True)
        for title, found in of_row.groupby("title", sort=False):
            base = alt.Chart(found).encode(
                x=x,
                y=y,
                color=alt.Color("line:O", scale=SHADES, legend=None),
                detail=alt.Detail("run:N"),
            )
            marks = base.mark_line(strokeWidth=1.2, point=alt.OverlayMarkDef(size=9))
            panels.append(alt.layer(zero_line(), marks, title=alt.Title(str(title)), **_PANEL))

    answers = report.answers("drift")
    counts = seeds(len(answers[label]) for label in table["label"].unique())
    sentences = [
        "Each line shows the learned frequencies θ of the model, a layer, or a key/value head in a "
        f"layer, the palest first ({counts} per row). Above 0, a pair rotates "
        "faster than at the start. Median: of the absolute values over a run's lines, averaged "
        "over runs."
    ]
    drawn = alt.concat(*panels, columns=2, title=explanation(sentences))
    return drawn.resolve_scale(color="independent")


def points(report: Report) -> pd.DataFrame:
    """Return how far each frequency moved: columns label, title, run, line, theta0 and moved.

    A panel's title has the mean over runs of the median magnitude, as the notes of the table.
    """
    found = []
    for label, answers in report.answers("drift").items():
        for pair in PAIRS:
            sites = [answer["sites"][pair] for answer in answers if pair in answer["sites"]]
            moved = [drifts(site) for site in sites]
            middle = np.mean([np.median(np.abs(of_run)) for of_run in moved]) if moved else 0.0
            title = f"{report.rows[label].name}, {PAIR_NAMES[pair]}: median {middle:.3g}"
            for run, (site, of_run) in enumerate(zip(sites, moved, strict=True)):
                for line, values in enumerate(of_run):
                    table = pd.DataFrame({"theta0": site["theta0"], "moved": values})
                    found.append(table.assign(label=label, title=title, run=run, line=line))
    return gathered(found, ["label", "title", "run", "line", "theta0", "moved"])


def drifts(site: Mapping[str, Any]) -> Array:
    """Return ln(|theta|/theta0) of each line of a pair of sites: [lines, F].

    The sign of a directly learned frequency has no effect: the model rotates by its absolute value.
    """
    theta = np.array(site["theta"], dtype=float)
    moved: Array = np.log(np.abs(theta) / np.array(site["theta0"], dtype=float))
    return moved
