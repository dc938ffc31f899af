"""Figure 2: the 16 subsets as a grid, rotation of Q and K against rotation of V and O."""

from collections.abc import Iterator
from typing import Any

import altair as alt
import pandas as pd

from rope_exp.figures.style import INK, SIGNED, explanation, in_words, parts
from rope_exp.report import Report
from rope_exp.stats import MARGIN

ORDER = 3
_SCORES = {"": "none", "q": "Q", "k": "K", "qk": "QK"}
_VALUES = {"": "none", "v": "V", "o": "O", "vo": "VO"}
# Cells further from 0 than this share of the scale have white text.
_DARK = 0.75


def figure(report: Report) -> alt.LayerChart | None:
    """Draw each subset's mean difference; None if rows are not variants, or no subset has one."""
    cells = pd.DataFrame(_cells(report) if report.of_variants else [])
    if cells.empty or cells["delta"].isna().all():
        return None

    # Equal distances from 0 have equally strong colours: blue is better, orange is worse.
    largest = max(cells["delta"].abs().max(), MARGIN)
    scale = alt.Scale(scheme="blueorange", domain=[-largest, largest])
    title = [f"loss minus {report.reference.name}'s", f"({report.unit})"]
    legend = alt.Legend(title=title, labelExpr=SIGNED, gradientLength=230)
    is_dark = f"abs(datum.delta) > {_DARK * largest}"

    base = alt.Chart(cells).encode(
        x=_sites(alt.X("values:N", title="rotation of V and O"), _VALUES),
        y=_sites(alt.Y("scores:N", title="rotation of Q and K"), _SCORES),
    )
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
        title=explanation(_sentences(report)),
    )


def _cells(report: Report) -> Iterator[dict[str, Any]]:
    """Yield the words and the place of each subset."""
    for row in report.rows.values():
        if place := parts(row.label):
            words = in_words(report, row)
            # The number of diverged seeds is on a separate line.
            below = (words["half"] + words["verdict"]).replace(" (", "\n(")
            scores, values = place
            yield {**words, "below": below, "scores": _SCORES[scores], "values": _VALUES[values]}


def _sites(channel: Any, names: dict[str, str]) -> Any:
    """Return an axis with a place for every set of sites, also for those that have not run."""
    bare = alt.Axis(domain=False, ticks=False, labelAngle=0, labelFontSize=12)
    return channel.scale(domain=list(names.values()), paddingInner=0.025).axis(bare)


def _sentences(report: Report) -> Iterator[str]:
    yield (
        f"Group {report.groups}. Cells show the mean within-seed difference and, with at least two "
        "seeds, half the width of the 95 % interval of the table's test, and the verdict. Diverged "
        "runs are excluded. Empty: not run."
    )
    if report.published:
        yield "Italics in the corner: published difference."
