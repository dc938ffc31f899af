"""Metrics by training tokens, for the figures and the page."""

from collections.abc import Iterator, Sequence
from typing import Any

import altair as alt
import pandas as pd

from rope_exp.comparable import Row
from rope_exp.figures.style import (
    COLOR,
    SIGNED,
    end_names,
    explanation,
    gathered,
    limits,
    looks,
    markers,
    row_lines,
    with_looks,
    zero_line,
)
from rope_exp.report import Report
from rope_exp.runs import Run

# Axes are scaled to the curves after this share of the run; before it they fall too steeply.
SHOWN_FROM = 0.2


def by_tokens(runs: Sequence[Run], key: str, window: int = 1) -> pd.DataFrame:
    """Return a column for each seed by tokens: the running median over `window` rows with `key`."""
    columns = {}
    for run in sorted(runs, key=lambda run: run.config.seed):
        train = run.config.train
        values = {train.tokens_until(row["step"]): row[key] for row in run.metrics if key in row}
        curve = pd.Series(values, dtype=float)
        columns[run.config.seed] = curve.rolling(window, min_periods=1).median()
    return pd.DataFrame(columns, dtype=float).sort_index()


def finished_or_all(row: Row) -> Sequence[Run]:
    """Return a row's finished runs, or all runs if none has finished."""
    finished = [run for run in row.runs if run.status == "finished"]
    return finished or row.runs


ORDER = 2
_WIDTH = 310
_HEIGHT = 340
_SIDE = {"width": 205, "height": _HEIGHT // 2 - 30}
_COLUMNS = ["label", "tokens", "mean"]
_CROSS = "M-1,-1L1,1M-1,1L1,-1"
_TOKENS = "datum.value ? format(datum.value, '~s') : '0'"


def figure(report: Report) -> alt.HConcatChart | None:
    """Draw differences to the reference, validation and training losses against tokens.

    None if no run has an evaluation.
    """
    if not any("val/loss" in row for run in report.runs for row in run.metrics):
        return None

    # The running median of training losses covers a tenth of the longest run's rows.
    window = max(1, max(len(run.metrics) for run in report.runs) // 10)
    longest = max(run.config.train.num_tokens for run in report.runs)
    x = alt.X("tokens:Q", title="training tokens").scale(domain=[0, 1.02 * longest], nice=False)
    x = x.axis(labelExpr=_TOKENS, tickCount=4, labelFlush=False, grid=True)

    losses = [
        *_losses(report, x, "val/loss", "validation loss", 1),
        *_losses(report, x, "train/loss", "training loss", window),
    ]
    return alt.hconcat(
        *_differences(report, x),
        alt.vconcat(*losses),
        spacing=20,
        datasets=looks(report),
        title=explanation(_sentences(report, window)),
    )


# -- differences -----------------------------------------------------------------------------------


def _differences(report: Report, x: alt.X) -> Iterator[alt.LayerChart]:
    """Draw each row's mean difference, the band of its seeds, and its name at the end."""
    reference = by_tokens(finished_or_all(report.reference), "val/loss")
    of_rows = [
        _points(row, by_tokens(finished_or_all(row), "val/loss").sub(reference))
        for row in report.rows.values()
    ]
    points = gathered(of_rows, _COLUMNS)
    if points.empty:
        return

    late = _late(points, report)
    domain = limits(late["mean"], [*late["low"].dropna(), *late["high"].dropna()])
    title = f"validation loss minus {report.reference.name}'s ({report.unit})"
    y = alt.Y("mean:Q", title=title).scale(domain=domain, nice=False)
    y = y.axis(labelExpr=SIGNED, tickCount=6, grid=True)
    base = with_looks(points).encode(x=x, y=y)
    ends = points.groupby("label", sort=False).last().rename(columns={"mean": "end"})

    # One seed has no band.
    band = base.transform_filter("isValid(datum.low)").mark_area(clip=True, opacity=0.18)
    yield alt.layer(
        zero_line(),
        band.encode(
            y=alt.Y("low:Q", title=title),
            y2=alt.Y2("high"),
            color=COLOR,
            detail=alt.Detail("label:N"),
        ),
        *_lines(base, width=1.6, size=45),
        *end_names(ends, domain, _WIDTH, _HEIGHT),
        width=_WIDTH,
        height=_HEIGHT,
    )


# -- losses ----------------------------------------------------------------------------------------


def _losses(
    report: Report, x: alt.X, key: str, title: str, window: int
) -> Iterator[alt.LayerChart]:
    """Draw the mean over finished seeds; a cross marks the end of a diverged run."""
    rows = report.rows.values()
    of_rows = [_points(row, by_tokens(finished_or_all(row), key, window)) for row in rows]
    points = gathered(of_rows, _COLUMNS)
    if points.empty:
        return

    late = _late(points, report)["mean"]
    pad = 0.06 * (late.max() - late.min()) or 0.1
    domain = [late.min() - pad, late.max() + pad]
    y = alt.Y("mean:Q", title=[title, f"({report.unit})"], axis=alt.Axis(tickCount=5))
    y = y.scale(domain=domain, nice=False)

    ends = [_points(row, by_tokens([run], key, window)).tail(1) for row, run in _diverged(report)]
    crosses = gathered(ends, _COLUMNS)
    # An end outside the scale is drawn at its edge.
    crosses["mean"] = crosses["mean"].clip(*domain)
    cross = with_looks(crosses).mark_point(shape=_CROSS, size=50, strokeWidth=2, opacity=1)
    lines = _lines(with_looks(points).encode(x=x, y=y), width=1.2, size=20)
    yield alt.layer(*lines, cross.encode(x=x, y=y, color=COLOR), **_SIDE)


def _diverged(report: Report) -> list[tuple[Row, Any]]:
    runs = [(row, run) for row in report.rows.values() for run in row.runs]
    return [(row, run) for row, run in runs if run.status == "diverged"]


# -- points ----------------------------------------------------------------------------------------


def _points(row: Row, values: pd.DataFrame) -> pd.DataFrame:
    """Return a row's means over seeds by tokens, one SD on either side, at most 200 or so."""
    complete = values.dropna(axis="columns", how="all").dropna()
    mean = complete.mean(axis="columns")
    sd = complete.std(axis="columns")
    frame = pd.DataFrame({"mean": mean, "low": mean - sd, "high": mean + sd}).round(6)

    # The last point is kept.
    thinned = frame.dropna(subset="mean").iloc[:: -max(1, len(frame) // 100)].iloc[::-1]
    name = f"{row.name} ({row.verdict})" if row.verdict else row.name
    points = thinned.rename_axis("tokens").reset_index().assign(label=row.label, name=name)
    # A mark at every point would hide the line.
    every = max(1, len(points) // 12)
    return points.assign(marked=points.index % every == every // 2)


def _late(points: pd.DataFrame, report: Report) -> pd.DataFrame:
    """Return the points after the steep start; axes are scaled to them.

    Rows that diverged are left out, unless there is nothing else.
    """
    diverged = [row.label for row in report.rows.values() if row.verdict == "diverged"]
    late = points[points["tokens"] >= SHOWN_FROM * points["tokens"].max()]
    kept = late[~late["label"].isin(diverged)]
    return points if kept.empty else kept


def _lines(base: alt.Chart, width: float, size: int) -> Iterator[alt.Chart]:
    """Draw each row's line and markers."""
    yield row_lines(base, width, clip=True)
    yield from markers(base.transform_filter("datum.marked"), size)


def _sentences(report: Report, window: int) -> Iterator[str]:
    num_seeds = len({run.config.seed for run in report.runs})
    seeds = "one seed"
    if num_seeds > 1:
        seeds = (
            f"means over up to {num_seeds} finished seeds; band: one SD of the differences over "
            "seeds, not a 95 % interval"
        )
    yield f"Group {report.groups}; {seeds}."
    if report.of_variants:
        yield (
            "Colour and marker fill show which of Q and K rotate; dash and marker shape, which of "
            "V and O."
        )
    yield f"Training loss: running median over {window} logged steps. The steep start is cut off."
    if _diverged(report):
        yield "×: diverged."
    if not report.reference.runs:
        yield f"No differences: {report.reference.name} has no runs here."
