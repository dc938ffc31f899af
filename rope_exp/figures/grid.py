"""Figure of the 16 subsets as a grid, rotation of Q and K against rotation of V and O."""

import altair as alt
import pandas as pd

from rope_exp.figures import _style as style
from rope_exp.report import Figure, Report
from rope_exp.stats import MARGIN
from rope_exp.svg import INK


def figure(report: Report) -> alt.LayerChart | None:
    """Draw each subset's mean difference; None if rows are not variants, or no subset has one."""
    cells = []
    others = []
    for row in report.rows.values():
        if row.label not in style.SITES_OF:
            others.append(row.name)
        if row.label in style.SITES_OF and report.of_variants:
            texts = style.row_texts(report, row)
            # The number of diverged seeds is on a separate line.
            texts["below"] = (texts["half"] + texts["verdict"]).replace(" (", "\n(")
            scores, values = style.parts(row.label)
            cells.append({**texts, "scores": scores.upper(), "values": values.upper()})
    if all(cell["delta"] is None for cell in cells):
        return None

    # Equal distances from 0 have equally strong colours: blue is better, orange is worse.
    largest = max(MARGIN, *(abs(cell["delta"] or 0) for cell in cells))
    scale = alt.Scale(scheme="blueorange", domain=[-largest, largest])
    title = [f"loss minus {report.reference.name}'s", f"({report.unit})"]
    legend = alt.Legend(title=title, labelExpr=style.SIGNED, gradientLength=230)
    # Cells far from 0 have white text, which is dark in a dark page, where these cells are bright.
    is_dark = f"abs(datum.delta) > {0.65 * largest}"

    # Axes have a place for every set of sites, also for those that have not run.
    axis = alt.Axis(
        domain=False, ticks=False, labelAngle=0, labelFontSize=12, labelExpr="datum.value || 'none'"
    )
    values = alt.Scale(domain=["", "V", "O", "VO"], paddingInner=0.025)
    scores = alt.Scale(domain=["", "Q", "K", "QK"], paddingInner=0.025)
    base = alt.Chart(pd.DataFrame(cells)).encode(
        x=alt.X("values:N", title="rotation of V and O", scale=values, axis=axis),
        y=alt.Y("scores:N", title="rotation of Q and K", scale=scores, axis=axis),
    )
    sentences = [
        f"Group {report.groups}. Cells show the mean within-seed difference and, with at least two "
        "seeds, half the width of the 95 % interval of the table's test, and the verdict. Diverged "
        "runs are excluded. Empty: not run."
    ]
    if others:
        sentences.append(f"Not a subset of the sites, so not here: {', '.join(others)}.")
    if report.source.losses:
        sentences.append("Italics in the corner: published difference.")
    text = base.encode(color=alt.condition(is_dark, alt.value("white"), alt.value(INK)))
    known = base.transform_filter("isValid(datum.delta)").mark_rect()
    corner = text.mark_text(dx=56, dy=-25, align="right", fontStyle="italic")
    return alt.layer(
        known.encode(color=alt.Color("delta:Q", scale=scale, legend=legend)),
        text.mark_text(fontSize=15, dy=-4).encode(text=alt.Text("number:N")),
        text.mark_text(dy=14, lineBreak="\n").encode(text=alt.Text("below:N")),
        corner.encode(text=alt.Text("published:N")),
        width=4 * 125,
        height=4 * 68,
        title=style.explanation(sentences),
    )


FIGURE = Figure(order=3, draw=figure)
