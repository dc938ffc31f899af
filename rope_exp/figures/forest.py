"""Figure of each row's difference to the reference, its intervals and the published difference."""

import json
from collections.abc import Iterator

import altair as alt
import pandas as pd

from rope_exp.figures import _style as style
from rope_exp.report import Figure, Report
from rope_exp.stats import MARGIN

_WIDTH = 310
# The ends of a row's own interval, and of the one that holds for all rows, which contains it.
_ENDS = ("delta_ci_low", "delta_ci_high")
_WIDE = ("delta_wide_low", "delta_wide_high")
# The columns of words beside the chart: key, header, and distance from the chart's right edge.
_COLUMNS = (
    ("difference", "Δ [95 % interval]", 14),
    ("seeds", "seeds", 195),
    ("published", "published", 240),
)


def figure(report: Report) -> alt.LayerChart | None:
    """Draw the differences to the reference; None if no row shares a seed with it."""
    others = [label for label in report.rows if label != report.reference.label]
    if all(report.lines[label]["delta"] is None for label in others):
        return None

    table = _rows(report)
    bars = report.pairs["reference"][["b", *_ENDS, *_WIDE]].rename(columns={"b": "label"})
    means = [*table["delta"].dropna(), *table["published_delta"].dropna(), -MARGIN, MARGIN]
    low, high = style.limits(means, [*bars[_WIDE[0]], *bars[_WIDE[1]]])

    title = f"loss minus {report.reference.name}'s ({report.unit}); right is worse"
    x = alt.X("delta:Q", title=title).scale(domain=[low, high], nice=False, clamp=True)
    x = x.axis(labelExpr=style.SIGNED, tickCount=4, grid=True)
    # Without a domain, rows are in the order in which the layers happen to have them.
    names = json.dumps({row.label: row.name for row in report.rows.values()})
    y = alt.Y("label:N", title=None).scale(domain=list(table["label"]))
    y = y.axis(domain=False, ticks=False, labelPadding=8, labelExpr=f"{names}[datum.value]")
    base = style.with_looks(report, table).encode(y=y)
    published = base.mark_point(style="quiet", size=110, opacity=1)
    margin = alt.Chart(alt.InlineData([{"low": -MARGIN, "high": MARGIN}])).mark_rect(style="margin")
    zero = alt.Chart().mark_rule(style="zero")
    layers = [
        margin.encode(x="low:Q", x2="high"),
        zero.encode(x=alt.XDatum(0, type="quantitative")),
        published.encode(x="published_delta:Q"),
    ]

    # Intervals, thin before thick, with an arrow where one is cut off.
    bar = style.with_looks(report, bars).encode(y=y, color=style.COLOR)
    for ends, width in ((_WIDE, 1), (_ENDS, 4)):
        rule = bar.mark_rule(strokeWidth=width, opacity=1)
        layers.append(rule.encode(x=alt.X(f"{ends[0]}:Q"), x2=alt.X2(ends[1])))
    arrows = (("left", _WIDE[0], f"< {low}"), ("right", _WIDE[1], f"> {high}"))
    for side, end, outside in arrows:
        arrow = bar.transform_filter(f"datum.{end} {outside}")
        arrow = arrow.mark_point(shape=f"triangle-{side}", filled=True, size=45, opacity=1)
        layers.append(arrow.encode(x=alt.X(f"{end}:Q")))
    layers += style.markers(base.encode(x=x), size=60)

    # Words beside the chart, without empty columns. The number of diverged seeds needs space.
    widening = 6 * max(0, int(table["seeds"].str.len().max()) - 5)
    for key, header, offset in _COLUMNS:
        if table[key].any():
            if key == "published":
                offset += widening
            at = alt.XValue(_WIDTH + offset)
            cell = base.mark_text(align="left")
            head = alt.Chart().mark_text(text=header, align="left", style="quiet")
            layers += [cell.encode(x=at, text=key), head.encode(x=at, y=alt.YValue(-10))]
    is_cut = bars[_WIDE[0]].min() < low or bars[_WIDE[1]].max() > high
    return alt.layer(
        *layers,
        width=_WIDTH,
        height=alt.Step(25),
        title=style.explanation(_sentences(report, bool(table["published_delta"].any()), is_cut)),
    )


def _rows(report: Report) -> pd.DataFrame:
    """Return the numbers and words of each row; the reference is at 0 by definition."""
    table = pd.DataFrame([style.row_texts(report, row) for row in report.rows.values()])
    is_reference = table["label"] == report.reference.label
    table.loc[is_reference, "difference"] = "0 (reference)"
    table.loc[is_reference, "published_delta"] = None
    return table


def _sentences(report: Report, is_published: bool, is_cut: bool) -> Iterator[str]:
    yield f"Group {report.groups}. Grey band: margin of {MARGIN:g} {report.margin_unit}."
    num_pairs = len(report.pairs["reference"])
    if num_pairs:
        yield (
            f"Thick: 95 % interval of the paired t test; thin: interval that holds for all "
            f"{num_pairs} differences (Bonferroni). The table has the verdicts."
        )
    else:
        yield "No row shares two seeds with the reference, so nothing can be tested."
    if report.of_variants:
        yield style.LEGEND
    if is_cut:
        yield "Arrow: the interval extends further."
    if is_published:
        yield (
            f"Grey circle: published ({report.source.short}; {report.source.setting}); compare "
            "order and signs, not sizes."
        )
    if report.reference.mark:
        yield f"The reference: {report.reference.name} {report.reference.mark}."


FIGURE = Figure(order=1, draw=figure)
