"""The figures of a report as Altair charts, each defined once for the page and for its SVG file.

A chart holds data, marks, tooltips and the colours of rows. Everything else that is coloured takes
its colour from a config: `CONFIG` for files; the page passes its own, for dark mode.
"""

import re
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

import altair as alt
import pandas as pd
import vl_convert

from rope_exp.evidence.significance import MARGIN
from rope_exp.report.by_tokens import SHOWN_FROM, by_tokens, finished_or_all
from rope_exp.report.content import Line, Report
from rope_exp.report.diverged import diverged_mark
from rope_exp.report.looks import look, parts
from rope_exp.report.page_marks import dashes, filled, outline
from rope_exp.report.paper.labels import spread
from rope_exp.report.paper.style import limits
from rope_exp.report.tables import WORDS

alt.data_transformers.disable_max_rows()

Chart = alt.LayerChart | alt.HConcatChart

_INK = "#222222"
_GREY = "#666666"
CONFIG: dict[str, Any] = {
    # vl-convert ships Liberation Sans, so the layout is the same on every machine. Arial, which
    # readers have, is as wide.
    "font": "Liberation Sans, Arial, Helvetica, sans-serif",
    "background": "white",
    "padding": 8,
    "aria": False,
    "view": {"stroke": None},
    "title": {"color": _GREY, "fontSize": 11, "fontWeight": "normal", "lineHeight": 14},
    "axis": {
        "domainColor": _GREY,
        "tickColor": _GREY,
        "gridColor": "#EBEBEB",
        "labelFontSize": 11,
        "titleFontSize": 12,
        "titleFontWeight": "normal",
    },
    "legend": {"labelFontSize": 11, "titleFontSize": 12, "titleFontWeight": "normal"},
    "text": {"color": _INK, "fontSize": 11},
    "style": {
        "margin": {"color": "#E4E4E4"},
        "zero": {"color": _INK},
        "quiet": {"color": _GREY, "strokeWidth": 1},
    },
}
_COLOR = alt.Color("color:N", scale=None)
_CROSS = "M-1,-1L1,1M-1,1L1,-1"
_SIGNED = "datum.value ? format(datum.value, '+~g') : '0'"


def svg_of(chart: Chart) -> bytes:
    """Return a chart as an SVG file."""
    svg = vl_convert.vegalite_to_svg(chart.to_dict(), config=CONFIG)
    # Vega counts its ids over all charts of a process. A file must not depend on the others.
    names = dict.fromkeys(re.findall(r'id="(\w+)"', svg))
    numbers = {name: f"id{number}" for number, name in enumerate(names)}
    return re.sub(r'(?<=["#])(clip|gradient_)\d+', lambda found: numbers[found[0]], svg).encode()


# -- forest ----------------------------------------------------------------------------------------

_WIDTH = 310
# Columns of words: field, header, and distance from the chart's right edge.
_COLUMNS = (
    ("difference", "Δ [95 % interval]", 14),
    ("verdict", "verdict", 170),
    ("seeds", "seeds", 260),
    ("published", "published", 302),
)


def forest(report: Report) -> Chart | None:
    """Draw each row's difference to the reference, its intervals, and the published difference.

    None if no row shares a seed with the reference.
    """
    rows = [row for row in report.rows.values() if row.label != report.reference.label]
    if all(row.ours.delta is None for row in rows):
        return None

    table = pd.DataFrame([_in_words(report, row) for row in rows])
    bars = pd.DataFrame(_bars(report, rows), columns=["row", "low", "high", "width", "is_main"])
    means = [*table["delta"].dropna(), *table["theirs"].dropna(), -MARGIN, MARGIN]
    domain = limits(means, [*bars["low"], *bars["high"]])
    x = alt.X(
        "delta:Q",
        scale=alt.Scale(domain=domain, nice=False, clamp=True),
        axis=alt.Axis(labelExpr=_SIGNED, tickCount=4, grid=True),
        title=f"loss minus {report.reference.name}’s ({report.unit}); right is worse",
    )
    # Without a domain, rows are in the order in which the layers happen to have them.
    names = alt.Scale(domain=list(table["row"]))
    y = alt.Y(
        "row:N", scale=names, title=None, axis=alt.Axis(domain=False, ticks=False, labelPadding=8)
    )
    base = _looks(table, rows).encode(y=y)

    margin = alt.Chart(pd.DataFrame({"low": [-MARGIN], "high": [MARGIN]}))
    tips = ["difference", "paired", "family", "verdict", "p (Holm)", "seeds", "published"]
    layers = [
        margin.mark_rect(style="margin").encode(x="low", x2="high"),
        alt.Chart().mark_rule(style="zero").encode(x=alt.datum(0, type="quantitative")),
        base.mark_point(style="quiet", size=110, opacity=1).encode(x="theirs:Q"),
        *_intervals(_looks(bars, rows).encode(y=y, color=_COLOR), domain),
        *_markers(base.encode(x=x), size=60),
        *_columns(base, table),
        # An invisible strip over the whole line answers the pointer.
        base.mark_bar(opacity=0).encode(
            x=alt.value(0),
            x2=alt.value(_WIDTH),
            tooltip=[f"{field}:N" for field in ("row", *tips)],
        ),
    ]
    chart = alt.layer(*layers).properties(width=_WIDTH, height=alt.Step(25))
    return _explained(chart, _forest_print(report))


def _in_words(report: Report, row: Line) -> dict[str, Any]:
    """Return a row's differences, and the words about them."""
    record: dict[str, Any] = {
        "row": row.name,
        "delta": row.ours.delta,
        "theirs": row.theirs.delta,
        "difference": _signed(row.ours.delta),
        "verdict": row.verdict or f"untested {diverged_mark(row)}".rstrip(),
        "seeds": str(row.ours.num_seeds),
        "published": _signed(row.theirs.delta, digits=3),
        "half": "",
    }
    if judged := report.against.get(row.label):
        alone = report.alone.against[row.label]
        record["difference"] += f" {_interval(judged.low, judged.high)}"
        record["paired"] = _interval(alone.low, alone.high)
        record["family"] = _interval(judged.wide_low, judged.wide_high)
        record["verdict"] = f"{WORDS[judged.verdict]} {diverged_mark(row)}".rstrip()
        record["p (Holm)"] = f"{judged.p_adjusted:.2g}"
        record["half"] = f"± {judged.high - judged.delta:.4f} "
    return record


def _bars(report: Report, rows: Sequence[Line]) -> Iterator[tuple[str, float, float, int, bool]]:
    """Yield each row's intervals: thin for the family, thick for its own; pooled and paired."""
    for row in rows:
        for each in (report, report.alone) if report.is_pooled else (report,):
            if judged := each.against.get(row.label):
                is_main = each is report
                yield row.name, judged.wide_low, judged.wide_high, 1, is_main
                yield row.name, judged.low, judged.high, 4, is_main


def _intervals(base: alt.Chart, domain: tuple[float, float]) -> Iterator[alt.Chart]:
    """Draw intervals, the paired ones pale and below, with an arrow where one goes on outside."""
    width = alt.StrokeWidth("width:Q", scale=None)
    sides = (
        ("low", "triangle-left", f"datum.low < {domain[0]}"),
        ("high", "triangle-right", f"datum.high > {domain[1]}"),
    )
    styles: dict[str, dict[str, Any]] = {
        "datum.is_main": {"opacity": 1},
        "!datum.is_main": {"yOffset": 7, "opacity": 0.45},
    }
    for chosen, style in styles.items():
        bars = base.transform_filter(chosen)
        yield bars.mark_rule(**style).encode(x="low:Q", x2="high", strokeWidth=width)
        for end, shape, is_outside in sides:
            arrow = bars.transform_filter(is_outside)
            yield arrow.mark_point(filled=True, shape=shape, size=40, **style).encode(x=f"{end}:Q")


def _columns(base: alt.Chart, table: pd.DataFrame) -> Iterator[alt.Chart]:
    """Write columns of words beside the chart."""
    longest = table["verdict"].str.len().max()
    for field, header, offset in _COLUMNS:
        if table[field].any():
            # Space for the number of diverged runs behind a verdict.
            if field in ("seeds", "published"):
                offset += 6 * max(0, longest - 12)
            x = alt.value(_WIDTH + offset)
            head = alt.Chart().mark_text(text=header, align="left", style="quiet")
            yield base.mark_text(align="left").encode(x=x, text=f"{field}:N")
            yield head.encode(x=x, y=alt.value(-10))


def _forest_print(report: Report) -> Iterator[str]:
    yield f"Group {report.groups}. Grey band: the margin of {MARGIN:g} {report.margin_unit}."
    if report.against:
        yield (
            "Thick: the 95 % interval of the difference within a seed; thin: the one that holds "
            f"for all {len(report.against)} differences together (Bonferroni). Verdicts: by Holm "
            "over the same family. An arrow: it goes on."
        )
    if report.is_pooled:
        yield "Pale, below: by the row’s own differences alone (paired), without pooled noise."
    if theirs := report.published:
        yield (
            f"Grey circle: published ({theirs.short}; {theirs.setting}); compare order and signs, "
            "not sizes."
        )


# -- grid ------------------------------------------------------------------------------------------

_SCORES = {"": "none", "q": "Q", "k": "K", "qk": "QK"}
_VALUES = {"": "none", "v": "V", "o": "O", "vo": "VO"}


def grid(report: Report) -> Chart | None:
    """Draw each subset's mean difference, Q and K against V and O; None if no subset has one."""
    cells = pd.DataFrame(_cells(report))
    if cells.empty or cells["delta"].isna().all():
        return None

    # Equal distances from 0 have equally strong colours: blue is better, orange is worse.
    largest = max(cells["delta"].abs().max(), MARGIN)
    scale = alt.Scale(scheme="blueorange", domain=[-largest, largest])
    title = [f"loss minus {report.reference.name}’s", f"({report.unit})"]
    legend = alt.Legend(title=title, labelExpr=_SIGNED, gradientLength=230)
    is_dark = f"abs(datum.delta) > {0.75 * largest}"
    ink = alt.condition(is_dark, alt.value("white"), alt.value(_INK))

    base = alt.Chart(cells).encode(
        x=_sites(alt.X("values:N", title="rotated of V and O"), _VALUES),
        y=_sites(alt.Y("scores:N", title="rotated of Q and K"), _SCORES),
    )
    known = base.transform_filter("isValid(datum.delta)")
    corner = base.mark_text(dx=56, dy=-25, align="right", fontStyle="italic")
    chart = alt.layer(
        known.mark_rect().encode(
            color=alt.Color("delta:Q", scale=scale, legend=legend),
            tooltip=["row", "difference", "verdict", "seeds", "published"],
        ),
        base.mark_text(fontSize=15, dy=-2).encode(text="number", color=ink),
        base.mark_text(dy=17).encode(text="below", color=ink),
        corner.encode(text="published", color=ink),
    )
    return _explained(chart.properties(width=4 * 125, height=4 * 68), _grid_print(report))


def _cells(report: Report) -> Iterator[dict[str, Any]]:
    for row in report.rows.values():
        if place := parts(row.label):
            cell = _in_words(report, row)
            if row.label == report.reference.label:
                cell |= {"verdict": "reference", "difference": "0", "published": ""}
            cell["number"] = cell["difference"].split(" ")[0]
            cell["below"] = cell["half"] + cell["verdict"]
            yield cell | {"scores": _SCORES[place[0]], "values": _VALUES[place[1]]}


def _sites(channel: Any, names: dict[str, str]) -> Any:
    bare = alt.Axis(domain=False, ticks=False, labelAngle=0, labelFontSize=12)
    scale = alt.Scale(domain=list(names.values()), paddingInner=0.025)
    return channel.scale(scale).axis(bare)


def _grid_print(report: Report) -> Iterator[str]:
    yield (
        f"Group {report.groups}. In a cell: the mean difference within a seed, half its 95 % "
        "interval and the verdict where there are two seeds. Empty: not run."
    )
    if report.published:
        yield "In the corner, in italics: the published difference."


# -- curves ----------------------------------------------------------------------------------------

_HEIGHT = 340


def curves(report: Report) -> Chart | None:
    """Draw differences to the reference, validation and training losses by training tokens.

    None if no run has an evaluation.
    """
    if not any("val/loss" in row for run in report.runs for row in run.metrics):
        return None

    # The running median of training losses covers a tenth of the longest run's rows.
    window = max(1, max(len(run.metrics) for run in report.runs) // 10)
    longest = max(run.config.train.num_tokens for run in report.runs)
    label = "datum.value ? format(datum.value, '~s') : '0'"
    x = alt.X(
        "tokens:Q",
        title="training tokens",
        axis=alt.Axis(labelExpr=label, tickCount=5, labelFlush=False, grid=True),
        scale=alt.Scale(domain=[0, 1.02 * longest], nice=False),
    )
    losses = alt.vconcat(
        _losses(report, x.title(None), "val/loss", "validation loss"),
        _losses(report, x, "train/loss", "training loss", window),
    )
    chart = alt.hconcat(_differences(report, x), losses, spacing=24)
    return _explained(chart, _curves_print(report, window))


def _differences(report: Report, x: alt.X) -> alt.LayerChart:
    """Draw each row's mean difference, the band of its seeds, and its name at the end."""
    rows = list(report.rows.values())
    reference = by_tokens(finished_or_all(report.reference), "val/loss")
    found = []
    for row in rows:
        losses = by_tokens(finished_or_all(row), "val/loss")
        differences = losses.sub(reference).dropna(axis="columns", how="all").dropna()
        found.append(_points(row, differences))
    points = pd.concat(found)
    late = _late(points, rows)
    domain = limits(late["mean"], [*late["low"].dropna(), *late["high"].dropna()])

    title = f"validation loss minus {report.reference.name}’s ({report.unit})"
    axis = alt.Axis(labelExpr=_SIGNED, tickCount=6, grid=True)
    y = alt.Y("mean:Q", title=title, axis=axis, scale=alt.Scale(domain=domain, nice=False))
    base = _looks(points, rows).encode(x=x, y=y)
    band = base.transform_filter("isValid(datum.low)").mark_area(clip=True, opacity=0.18)
    chart = alt.layer(
        alt.Chart().mark_rule(style="zero").encode(y=alt.datum(0, type="quantitative")),
        band.encode(y=alt.Y("low:Q", title=title), y2="high", color=_COLOR, detail="row:N"),
        *_lines(base, width=1.6, size=45),
        *_names(points, rows, domain),
    )
    return chart.properties(width=_WIDTH, height=_HEIGHT)


def _losses(report: Report, x: alt.X, key: str, title: str, window: int = 1) -> alt.LayerChart:
    """Draw the mean loss of each row; a cross marks the end of a diverged run."""
    rows = list(report.rows.values())
    points = pd.concat(_points(row, by_tokens(finished_or_all(row), key, window)) for row in rows)
    late = _late(points, rows)["mean"]
    pad = 0.06 * (late.max() - late.min()) or 0.1
    scale = alt.Scale(domain=[late.min() - pad, late.max() + pad], nice=False)
    y = alt.Y("mean:Q", title=[title, f"({report.unit})"], scale=scale, axis=alt.Axis(tickCount=5))
    layers = [*_lines(_looks(points, rows).encode(x=x, y=y), width=1.2, size=20)]

    ends = [
        _points(row, by_tokens([run], key, window)).tail(1)
        for row in rows
        for run in row.runs
        if run.status == "diverged"
    ]
    if ends:
        # An end outside the scale is drawn at its edge.
        crosses = pd.concat(ends)
        crosses["mean"] = crosses["mean"].clip(late.min() - pad, late.max() + pad)
        cross = _looks(crosses, rows).mark_point(shape=_CROSS, size=50, strokeWidth=2)
        layers.append(cross.encode(x=x, y=y, color=_COLOR))
    return alt.layer(*layers).properties(width=220, height=_HEIGHT // 2 - 20)


def _points(row: Line, values: pd.DataFrame) -> pd.DataFrame:
    """Return a row's means over seeds by tokens, one SD on either side, at most 200 or so."""
    mean = values.mean(axis="columns")
    sd = values.std(axis="columns")
    frame = pd.DataFrame({"mean": mean, "low": mean - sd, "high": mean + sd}).dropna(subset="mean")
    # The last point is kept.
    thinned = frame.round(4).iloc[:: -max(1, len(frame) // 100)].iloc[::-1]
    points = thinned.rename_axis("tokens").reset_index().assign(row=row.name)
    every = max(1, len(points) // 12)
    points["marked"] = points.index % every == every // 2
    return points


def _late(points: pd.DataFrame, rows: Sequence[Line]) -> pd.DataFrame:
    """Return the points after the steep beginning, to which axes are scaled."""
    diverged = [row.name for row in rows if row.verdict == "diverged"]
    is_late = points["tokens"] >= SHOWN_FROM * points["tokens"].max()
    return points[is_late & ~points["row"].isin(diverged)]


def _lines(base: alt.Chart, width: float, size: int) -> Iterator[alt.Chart]:
    """Draw each row's line, and markers that tell its numbers; the row pointed at stands out."""
    focus = alt.selection_point(fields=["row"], on="pointerover", clear="pointerout", name="focus")
    line = base.mark_line(clip=True, strokeWidth=width).encode(
        color=_COLOR,
        strokeDash=alt.StrokeDash("dash:N", scale=None),
        detail="row:N",
        opacity=alt.condition(focus, alt.value(1), alt.value(0.15)),
    )
    yield line.add_params(focus)
    tips = ["row:N", "tokens:Q", "mean:Q"]
    sd = alt.Tooltip("sd:Q", title="one SD", format=".4f")
    marked = base.transform_filter("datum.marked").transform_calculate(sd="datum.high - datum.mean")
    yield from _markers(marked.encode(tooltip=[*tips, sd]), size)


def _names(
    points: pd.DataFrame, rows: Sequence[Line], domain: tuple[float, float]
) -> Iterator[alt.Chart]:
    """Write each row's name beside the end of its line, moved apart and joined by a stroke."""
    ends = points.groupby("row", sort=False).last().reset_index()[["row", "mean"]]
    ends["mean"] = ends["mean"].clip(*domain)
    verdicts = {row.name: f" ({row.verdict})" for row in rows if row.verdict}
    ends["name"] = ends["row"] + ends["row"].map(verdicts).fillna("")
    gap = 13 / _HEIGHT * (domain[1] - domain[0])
    ends["place"] = spread(list(ends["mean"]), gap, domain[0] + gap / 2, domain[1] - gap / 2)

    base = alt.Chart(ends)
    beside = {"x": alt.value(_WIDTH + 2), "x2": alt.value(_WIDTH + 14)}
    yield base.mark_rule(style="quiet").encode(**beside, y="mean:Q", y2="place")
    name = base.mark_text(align="left").encode(x=alt.value(_WIDTH + 17), y="place:Q")
    yield name.encode(text="name")


def _curves_print(report: Report, window: int) -> Iterator[str]:
    count = len({run.config.seed for run in report.runs})
    seeds = f"means over up to {count} finished seeds; band: one SD of a difference"
    yield f"Group {report.groups}; {seeds if count > 1 else 'one seed'}."
    if report.of_variants:
        yield (
            "Colour and fill of the marker: which of Q and K rotate; dash and shape: which of V "
            "and O."
        )
    yield f"Training loss: running median over {window} logged steps. Steep beginnings are cut off."
    if any(run.status == "diverged" for run in report.runs):
        yield "×: diverged."
    if not report.reference.runs:
        yield f"Without {report.reference.name} there are no differences."


# -- shared ----------------------------------------------------------------------------------------


def _signed(value: float | None, digits: int = 4) -> str:
    return "" if value is None else f"{value:+.{digits}f}".replace("-", "−")


def _interval(low: float, high: float) -> str:
    return f"[{_signed(low)}, {_signed(high)}]"


def _looks(table: pd.DataFrame, rows: Sequence[Line]) -> alt.Chart:
    """Return a chart of a table with a column `row`, and columns for the looks of the rows."""
    records = []
    for row in rows:
        style = look(row.label, row.number)
        shapes = {"outline": outline(style), "filled": filled(style)}
        dash = dashes(style) or [1, 0]
        records.append({"row": row.name, "color": style["color"], "dash": dash, **shapes})
    fields = ["color", "dash", "outline", "filled"]
    looks = alt.LookupData(pd.DataFrame(records), key="row", fields=fields)
    return alt.Chart(table).transform_lookup("row", from_=looks)


def _markers(base: alt.Chart, size: int) -> Iterator[alt.Chart]:
    """Draw markers: the outline on white, and the part that is filled."""
    mark = base.mark_point(clip=True, size=size, opacity=1, strokeWidth=1.2, fill="white")
    yield mark.encode(
        stroke=alt.Stroke("color:N", scale=None), shape=alt.Shape("outline:N", scale=None)
    )
    mark = base.mark_point(clip=True, size=size, opacity=1, strokeWidth=0)
    yield mark.encode(fill=alt.Fill("color:N", scale=None), shape=alt.Shape("filled:N", scale=None))


def _explained(chart: Any, sentences: Iterator[str]) -> Any:
    """Write explanations below a chart."""
    lines = textwrap.wrap(" ".join(sentences), width=132)
    title = alt.Title(lines, orient="bottom", anchor="start", frame="bounds", offset=14)
    return chart.properties(title=title)
