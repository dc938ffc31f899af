"""Figure 1: each row's difference to the reference, its intervals, and the published difference."""

import json
from collections.abc import Iterator

import altair as alt
import pandas as pd

from rope_exp.figures.style import (
    COLOR,
    SIGNED,
    explanation,
    in_words,
    limits,
    looks,
    markers,
    with_looks,
    zero_and_margin,
)
from rope_exp.report import Report
from rope_exp.stats import MARGIN

ORDER = 1
_WIDTH = 310
# The ends of a row's own interval, and of the one that holds for all rows, which contains it.
_ENDS = ("delta_ci_low", "delta_ci_high")
_WIDE = ("delta_wide_low", "delta_wide_high")
# The columns of words beside the chart: header, and distance from the chart's right edge.
_COLUMNS = {
    "difference": ("Δ [95 % interval]", 14),
    "seeds": ("seeds", 195),
    "published": ("published", 240),
}


def figure(report: Report) -> alt.LayerChart | None:
    """Draw the differences to the reference; None if no row shares a seed with it."""
    rows = [row for row in report.rows.values() if row.label != report.reference.label]
    if all(report.lines[row.label]["delta"] is None for row in rows):
        return None

    table = pd.DataFrame([in_words(report, row) for row in rows])
    bars = pd.DataFrame(report.against.values(), columns=["b", *_ENDS, *_WIDE])
    # Without bars, Altair could not infer the types of the columns.
    bars = bars.rename(columns={"b": "label"}).astype(dict.fromkeys([*_ENDS, *_WIDE], float))
    means = [*table["delta"].dropna(), *table["theirs"].dropna(), -MARGIN, MARGIN]
    domain = limits(means, [*bars[_WIDE[0]], *bars[_WIDE[1]]])

    title = f"loss minus {report.reference.name}'s ({report.unit}); right is worse"
    x = alt.X("delta:Q", title=title, scale=alt.Scale(domain=domain, nice=False, clamp=True))
    x = x.axis(labelExpr=SIGNED, tickCount=4, grid=True)
    # Without a domain, rows are in the order in which the layers happen to have them.
    y = alt.Y("label:N", title=None, scale=alt.Scale(domain=list(table["label"])))
    names = json.dumps({row.label: row.name for row in rows})
    y = y.axis(domain=False, ticks=False, labelPadding=8, labelExpr=f"{names}[datum.value]")

    base = with_looks(table).encode(y=y)
    is_cut = bars[_WIDE[0]].min() < domain[0] or bars[_WIDE[1]].max() > domain[1]
    sentences = _sentences(report, bool(table["theirs"].notna().any()), is_cut)
    return alt.layer(
        *zero_and_margin(),
        base.mark_point(style="quiet", size=110, opacity=1).encode(x=alt.X("theirs:Q")),
        *_intervals(with_looks(bars).encode(y=y, color=COLOR), domain),
        *markers(base.encode(x=x), size=60),
        *_columns(base, table),
        width=_WIDTH,
        height=alt.Step(25),
        datasets=looks(report),
        title=explanation(sentences),
    )


def _intervals(base: alt.Chart, domain: tuple[float, float]) -> Iterator[alt.Chart]:
    """Draw intervals, thin before thick, with an arrow where one is cut off."""
    for (low, high), width in ((_WIDE, 1), (_ENDS, 4)):
        rule = base.mark_rule(strokeWidth=width, opacity=1)
        yield rule.encode(x=alt.X(f"{low}:Q"), x2=alt.X2(high))

    arrows = (("triangle-left", _WIDE[0], "<"), ("triangle-right", _WIDE[1], ">"))
    for (shape, end, sign), edge in zip(arrows, domain, strict=True):
        outside = base.transform_filter(f"datum.{end} {sign} {edge}")
        arrow = outside.mark_point(shape=shape, filled=True, size=45, opacity=1)
        yield arrow.encode(x=alt.X(f"{end}:Q"))


def _columns(base: alt.Chart, table: pd.DataFrame) -> Iterator[alt.Chart]:
    """Write columns of words beside the chart, and leave out an empty one."""
    # Space for the number of diverged seeds.
    more = 6 * max(0, int(table["seeds"].str.len().max()) - 5)
    for field, (header, offset) in _COLUMNS.items():
        if table[field].any():
            x = alt.XValue(_WIDTH + offset + (more if field == "published" else 0))
            yield base.mark_text(align="left").encode(x=x, text=alt.Text(f"{field}:N"))
            head = alt.Chart().mark_text(text=header, align="left", style="quiet")
            yield head.encode(x=x, y=alt.YValue(-10))


def _sentences(report: Report, is_published: bool, is_cut: bool) -> Iterator[str]:
    yield f"Group {report.groups}. Grey band: margin of {MARGIN:g} {report.margin_unit}."
    if report.against:
        test = "pooled" if report.is_pooled else "paired"
        yield (
            f"Thick: 95 % interval of the {test} t test; thin: interval that holds for all "
            f"{len(report.against)} differences (Bonferroni). The table has the verdicts."
        )
    else:
        yield "No row shares two seeds with the reference, so nothing can be tested."
    if is_cut:
        yield "Arrow: the interval extends further."
    if report.published and is_published:
        theirs = report.published
        yield (
            f"Grey circle: published ({theirs.short}; {theirs.setting}); compare order and signs, "
            "not sizes."
        )
    if mark := report.reference.mark:
        yield f"The reference: {report.reference.name} {mark}."
