"""Differences to the reference, and losses, by training tokens."""

from collections.abc import Iterable, Iterator, Sequence

import altair as alt
import numpy as np
import pandas as pd
from scipy.optimize import isotonic_regression

from rope_exp.comparable import Row
from rope_exp.figures import _style as style
from rope_exp.folder import Run
from rope_exp.report import Figure, Report

_WIDTH = 310
_HEIGHT = 340


def figure(report: Report) -> alt.HConcatChart | None:
    """Draw differences and losses by tokens; None if no run has an evaluation."""
    if not any("val/loss" in row for run in report.runs for row in run.metrics):
        return None

    # The running median of training losses covers a tenth of the longest run's rows.
    window = max(1, max(len(run.metrics) for run in report.runs) // 10)
    longest = max(run.config.train.num_tokens for run in report.runs)
    x = alt.X("tokens:Q", title="training tokens").scale(domain=[0, 1.02 * longest], nice=False)
    tokens = "datum.value ? format(datum.value, '~s') : '0'"
    x = x.axis(labelExpr=tokens, tickCount=4, labelFlush=False, grid=True)

    losses = [
        *_losses(report, x, "val/loss", "validation loss", 1),
        *_losses(report, x, "train/loss", "training loss", window),
    ]
    title = style.explanation(_sentences(report, window))
    return alt.hconcat(*_differences(report, x), alt.vconcat(*losses), spacing=20, title=title)


def by_tokens(runs: Iterable[Run], key: str, window: int = 1) -> pd.DataFrame:
    """Return a column for each seed by tokens: the running median over `window` rows with `key`."""
    columns = {}
    for run in sorted(runs, key=lambda run: run.config.seed):
        train = run.config.train
        values = {train.tokens_until(row["step"]): row[key] for row in run.metrics if key in row}
        curve = pd.Series(values, dtype=float)
        columns[run.config.seed] = curve.rolling(window, min_periods=1).median()
    return pd.DataFrame(columns, dtype=float).sort_index()


def spread(wanted: pd.Series, gap: float, low: float, high: float) -> pd.Series:
    """Return the nearest heights (least squares) in the same order, at least `gap` apart.

    Args:
        wanted: the heights, in any order.
        gap: the least distance of two neighbours, in the unit of the heights.
        low: the lower limit. All heights lie between the two limits if they fit.
        high: the upper limit.
    Returns:
        The heights in ascending order, by the index of `wanted`.
    """
    ordered = wanted.sort_values(kind="stable")
    # With the gaps subtracted, heights only need to increase.
    gaps = gap * np.arange(len(ordered))
    heights = isotonic_regression(ordered.to_numpy() - gaps).x
    return pd.Series(np.clip(heights, low, high - max(gaps)) + gaps, ordered.index)


def _differences(report: Report, x: alt.X) -> Iterator[alt.LayerChart]:
    """Draw each row's mean difference, the band of its seeds, and its name at the end."""
    reference = by_tokens(_shown(report.reference), "val/loss")
    curves = [(row, by_tokens(_shown(row), "val/loss") - reference) for row in report.rows.values()]
    points = _points(curves)
    if points.empty:
        return

    late = _late(points, report)
    low, high = style.limits(late["mean"], [*late["low"].dropna(), *late["high"].dropna()])
    title = f"validation loss minus {report.reference.name}'s ({report.unit})"
    y = alt.Y("mean:Q", title=title).scale(domain=[low, high], nice=False)
    y = y.axis(labelExpr=style.SIGNED, tickCount=6, grid=True)
    base = style.with_looks(report, points).encode(x=x, y=y)
    # One seed has no band.
    band = base.transform_filter("isValid(datum.low)").mark_area(clip=True, opacity=0.18)
    edge = alt.Y("low:Q", title=title)

    # A stroke joins each name to the end of its line.
    ends = points.groupby("label", sort=False).last()
    ends["end"] = ends["mean"].clip(low, high)
    # Lines of text are 13 pixels apart.
    gap = 13 / _HEIGHT * (high - low)
    ends["place"] = spread(ends["end"], gap, low + gap / 2, high - gap / 2)
    at_end = alt.Chart(ends[["name", "end", "place"]])
    stroke = at_end.mark_rule(style="quiet").encode(y=alt.Y("end:Q"), y2=alt.Y2("place"))
    name = at_end.mark_text(align="left").encode(x=alt.XValue(_WIDTH + 17), y=alt.Y("place:Q"))

    yield alt.layer(
        style.zero_line(),
        band.encode(y=edge, y2=alt.Y2("high"), color=style.COLOR, detail=alt.Detail("label:N")),
        style.row_lines(base, 1.6, clip=True),
        *style.markers(base.transform_filter("datum.marked"), size=45),
        stroke.encode(x=alt.XValue(_WIDTH + 2), x2=alt.X2Value(_WIDTH + 14)),
        name.encode(text=alt.Text("name:N")),
        width=_WIDTH,
        height=_HEIGHT,
    )


def _losses(report: Report, x: alt.X, key: str, title: str, window: int) -> Iterator[alt.Chart]:
    """Draw the mean over finished seeds; a cross marks the end of a diverged run."""
    rows = report.rows.values()
    points = _points((row, by_tokens(_shown(row), key, window)) for row in rows)
    if points.empty:
        return

    late = _late(points, report)["mean"]
    pad = 0.06 * (late.max() - late.min()) or 0.1
    domain = [late.min() - pad, late.max() + pad]
    y = alt.Y("mean:Q", title=[title, f"({report.unit})"], axis=alt.Axis(tickCount=5))
    base = style.with_looks(report, points).encode(x=x, y=y.scale(domain=domain, nice=False))

    diverged = [(row, run) for row in rows for run in row.runs if run.status == "diverged"]
    ends = [(row, by_tokens([run], key, window).dropna().tail(1)) for row, run in diverged]
    crosses = _points(ends)
    # An end outside the scale is drawn at its edge.
    crosses["mean"] = crosses["mean"].clip(*domain)
    cross = style.with_looks(report, crosses)
    cross = cross.mark_point(shape="M-1,-1L1,1M-1,1L1,-1", size=50, strokeWidth=2, opacity=1)
    yield alt.layer(
        style.row_lines(base, 1.2, clip=True),
        *style.markers(base.transform_filter("datum.marked"), size=20),
        cross.encode(x=x, y=y, color=style.COLOR),
        width=205,
        height=_HEIGHT // 2 - 30,
    )


def _shown(row: Row) -> Sequence[Run]:
    """Return a row's finished runs, or all runs if none has finished."""
    return [run for run in row.runs if run.status == "finished"] or row.runs


def _points(curves: Iterable[tuple[Row, pd.DataFrame]]) -> pd.DataFrame:
    """Return each row's means over seeds by tokens, one SD on either side, at most 200 or so."""
    parts = [pd.DataFrame(columns=["tokens", "mean", "low", "high", "label", "name", "marked"])]
    for row, values in curves:
        complete = values.dropna(axis="columns", how="all").dropna()
        mean = complete.mean(axis="columns")
        sd = complete.std(axis="columns")
        frame = pd.DataFrame({"mean": mean, "low": mean - sd, "high": mean + sd}).round(6)

        # The last point is kept.
        thinned = frame.dropna(subset="mean").iloc[:: -max(1, len(frame) // 100)].iloc[::-1]
        name = f"{row.name} ({row.status})" if row.status else row.name
        points = thinned.rename_axis("tokens").reset_index().assign(label=row.label, name=name)
        # A mark at every point would hide the line.
        spacing = max(1, len(points) // 12)
        parts.append(points.assign(marked=points.index % spacing == spacing // 2))
    # Empty parts would change the types of columns.
    return pd.concat([part for part in parts if len(part)] or parts)


def _late(points: pd.DataFrame, report: Report) -> pd.DataFrame:
    """Return the points past the steep first fifth, of rows that did not diverge; all if none."""
    diverged = [row.label for row in report.rows.values() if row.status == "diverged"]
    late = points[points["tokens"] >= 0.2 * points["tokens"].max()]
    kept = late[~late["label"].isin(diverged)]
    return points if kept.empty else kept


def _sentences(report: Report, window: int) -> Iterator[str]:
    num_seeds = len({run.config.seed for run in report.runs})
    means = f"means over up to {num_seeds} finished seeds; band: one SD of the differences over "
    means += "seeds, not a 95 % interval"
    yield f"Group {report.groups}; {means if num_seeds > 1 else 'one seed'}."
    if report.of_variants:
        yield style.LEGEND
    training = "each logged step"
    if window > 1:
        training = f"running median over {window} logged steps"
    yield f"Training loss: {training}. The steep start is cut off."
    if any(run.status == "diverged" for run in report.runs):
        yield "×: diverged."
    if not report.reference.runs:
        yield f"No differences: {report.reference.name} has no runs here."


FIGURE = Figure(order=2, draw=figure)
