"""The figures: loss curves, and our differences beside the published ones. PNG bytes that depend on the runs alone."""

import hashlib
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

import matplotlib.style
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from rope_exp.config.variants import SITES
from rope_exp.evidence import published
from rope_exp.evidence.contrasts import Row, Status
from rope_exp.evidence.runs import Report, Run

# Paul Tol's "muted" scheme, made for colour-blind readers; the nine have a colour each, the seven other subsets share
# them dashed, a user's own variants dotted. Keyed by label alone, so a variant looks the same in every figure.
_NINE = {
    "qk_rope": "#332288", "qkvo_rope": "#88CCEE", "k_rope": "#44AA99", "vo_rope": "#CC6677", "qkv_rope": "#117733",
    "nope": "#777777", "o_rope": "#DDCC77", "q_rope": "#882255", "v_rope": "#AA4499",
}  # fmt: skip
_COLOURS = tuple(_NINE.values())
_MARKERS = "os^vD<>ph"
_SUBSETS = [f"{''.join(sites)}_rope" for size in range(2, 5) for sites in combinations(SITES, size)]
_OTHERS = [label for label in _SUBSETS if label not in _NINE]

_PLAIN = {
    "font.size": 9.0, "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "grid.alpha": 0.25,
    "axes.titlesize": 10.0, "axes.titlelocation": "left", "legend.frameon": False, "figure.dpi": 150.0,
    "figure.constrained_layout.use": True,
}  # fmt: skip
_SHOWN_FROM = 0.2  # the axes fit the curves after this share of the run; before it they fall too steeply to read


@dataclass(frozen=True)
class Look:
    """How a variant is drawn, everywhere."""

    color: str
    marker: str
    linestyle: Literal["-", "--", ":"]


def look(label: str) -> Look:
    """The variant's fixed colour, marker and line."""
    if label in _NINE:
        return Look(_NINE[label], _MARKERS[list(_NINE).index(label)], "-")
    if label in _OTHERS:
        return _shared_look(_OTHERS.index(label), "--")
    return _shared_look(int(hashlib.sha256(label.encode()).hexdigest(), 16), ":")


def _shared_look(number: int, linestyle: Literal["--", ":"]) -> Look:
    return Look(_COLOURS[number % len(_COLOURS)], _MARKERS[(number + 4) % len(_MARKERS)], linestyle)


# -- loss curves -------------------------------------------------------------------------------------------------------


def loss_curves(report: Report) -> bytes:
    """Training and validation loss against tokens, and validation loss minus the reference's at the same tokens."""
    with matplotlib.style.context(["default", _PLAIN]):
        figure = Figure(figsize=(11.5, 5.2))
        losses, deltas = figure.subplots(1, 2)
        window = _window(report)
        reference = _curves(report.group.of(report.reference), "val/loss")
        for row in report.rows:
            runs, style = report.group.of(row.label), look(row.label)
            validation = _curves(runs, "val/loss")
            training = _curves(runs, "train/loss", window)
            difference = validation.sub(reference).dropna(axis="columns", how="all")
            status = {run.config.seed: run.status for run in runs}
            _draw(losses, training, status, style, pale=True)
            _draw(losses, validation, status, style, pale=False)
            _draw(deltas, difference, status, style, pale=False)
        _fit(losses)
        _fit(deltas)
        for run in report.group.runs:
            if run.status == "diverged":
                _cross(losses, run, window)
        _say_axes(report, losses, deltas)
        handles = [_legend_line(row) for row in report.rows]
        figure.legend(handles=handles, loc="outside right upper", fontsize=8, handlelength=3)
        figure.supxlabel(_small_print(report, window), fontsize=7, color="#555555")
        return _png(figure)


def _curves(runs: Sequence[Run], key: str, window: int = 1) -> pd.DataFrame:
    """One column a seed, indexed by tokens (which the step tells): the running median over `window` rows with `key`."""
    columns = {}
    for run in runs:
        per_step = run.config.train.global_batch_size * run.config.train.seq_len
        values = {row["step"] * per_step: row[key] for row in run.metrics if key in row}
        columns[run.config.seed] = (
            pd.Series(values, dtype=np.float64).rolling(window, min_periods=1).median()
        )
    return pd.DataFrame(columns).sort_index()


def _draw(
    axes: Axes, curves: pd.DataFrame, status: Mapping[int, Status], style: Look, *, pale: bool
) -> None:
    """The mean over finished seeds, where all of them have a value; thin, each seed, if there are several.

    A variant without a finished seed has no mean: each of its seeds stands for itself.
    """
    color, line, marker = style.color, style.linestyle, "" if pale else style.marker
    seeds = [seed for seed in status if seed in curves.columns]
    finished = [seed for seed in seeds if status[seed] == "finished"]
    alone = {seed: curves[seed].dropna() for seed in seeds}
    if finished and len(seeds) > 1 and not pale:
        for seed, curve in alone.items():
            axes.plot(
                curve, color=color, linestyle=line, linewidth=0.6, alpha=0.45, gid=status[seed]
            )
    means = {finished[0]: curves[finished].dropna().mean(axis="columns")} if finished else alone
    alpha, width = (0.35, 0.9) if pale else (1.0, 1.3)
    for seed, curve in means.items():
        [drawn] = axes.plot(
            curve, color=color, linestyle=line, linewidth=width, alpha=alpha, gid=status[seed]
        )
        drawn.set(marker=marker, markersize=4)


def _fit(axes: Axes) -> None:
    """Limit the axes to what curves do after their steep beginning and before they diverge; the rest is cut off."""
    lines = [line for line in axes.lines if line.get_gid() != "diverged"] or axes.lines
    points = np.concatenate([np.empty((0, 2)), *(np.asarray(line.get_xydata()) for line in lines)])
    if not len(points):
        axes.text(
            0.5, 0.6, "nothing to show yet", transform=axes.transAxes, ha="center", color="#555555"
        )
        return
    heights = points[points[:, 0] >= _SHOWN_FROM * points[:, 0].max(), 1]
    margin = 0.06 * float(np.ptp(heights)) or 0.1
    axes.set_ylim(heights.min() - margin, heights.max() + margin)


def _cross(axes: Axes, run: Run, window: int) -> None:
    """Where a diverged run ended, moved to the edge if that lies outside."""
    training = _curves([run], "train/loss", window).iloc[:, 0]
    if len(training):
        height = float(np.clip(training.iloc[-1], *axes.get_ylim()))
        color = look(run.config.pe.label).color
        axes.plot(
            training.index[-1],
            height,
            "x",
            color=color,
            markersize=9,
            markeredgewidth=2.2,
            clip_on=False,
        )


def _window(report: Report) -> int:
    """Rows of the running median: a tenth of the longest run's."""
    return max(1, max(len(run.metrics) for run in report.group.runs) // 10)


def _say_axes(report: Report, losses: Axes, deltas: Axes) -> None:
    train = report.group.runs[0].config.train
    losses.set_title("Validation loss (marked), training loss (pale)")
    losses.set_ylabel("loss (nats per token)")
    deltas.set_title(f"Validation loss minus {report.reference_name}'s, same tokens and seed")
    deltas.set_ylabel("difference (nats per token)")
    deltas.axhline(0, color="black", linewidth=0.8)
    for axes in (losses, deltas):
        axes.set_xlabel("training tokens")
        axes.set_xlim(0, 1.02 * train.num_steps * train.global_batch_size * train.seq_len)
        axes.xaxis.set_major_formatter(lambda tokens, _: _short(tokens))


def _legend_line(row: Row) -> Line2D:
    ended = row.verdict if row.loss_mean is None else f"{row.loss_mean:.4f}"
    label, style = f"{row.name}  {ended}", look(row.label)
    return Line2D(
        [],
        [],
        color=style.color,
        linestyle=style.linestyle,
        marker=style.marker,
        markersize=4,
        label=label,
    )


def _short(tokens: float) -> str:
    """1.2M, 16.8B."""
    for unit, size in (("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if tokens >= size:
            return f"{tokens / size:.4g}{unit}"
    return f"{tokens:.4g}"


def _small_print(report: Report, window: int) -> str:
    num_seeds = len({run.config.seed for run in report.group.runs})
    seeds = (
        "one seed"
        if num_seeds == 1
        else f"{num_seeds} seeds (mean of the finished; thin: single seeds)"
    )
    crosses = "; ×: diverged" if any(run.status == "diverged" for run in report.group.runs) else ""
    return (
        f"Group {report.group.name}; {seeds}; listed by final validation loss; training loss: running median over "
        f"{window} logged {'step' if window == 1 else 'steps'}{crosses}; steep beginnings are cut off."
    )


# -- against the published table ---------------------------------------------------------------------------------------


def against_published(report: Report) -> bytes:
    """Differences to the reference, ours and the published, one line a variant."""
    rows = sorted(report.rows, key=_published_first)
    with matplotlib.style.context(["default", _PLAIN]):
        figure = Figure(figsize=(8.0, 1.9 + 0.3 * len(rows)))
        axes = figure.subplots()
        for height, row in enumerate(rows):
            color = look(row.label).color
            if row.delta is not None and row.published_delta is not None:
                axes.plot(
                    [row.delta, row.published_delta],
                    [height, height],
                    color="#bbbbbb",
                    linewidth=2,
                    zorder=1,
                )
            if row.published_delta is not None:
                axes.plot(
                    row.published_delta,
                    height,
                    "o",
                    color=color,
                    markerfacecolor="white",
                    markersize=8,
                )
            if row.delta is not None:
                axes.errorbar(
                    row.delta,
                    height,
                    xerr=row.delta_sd,
                    fmt="o",
                    color=color,
                    markersize=6,
                    capsize=3,
                )
        axes.axvline(0, color="black", linewidth=0.8)
        num_published = sum(row.published_loss is not None for row in rows)
        if 0 < num_published < len(rows):
            axes.axhline(num_published - 0.5, color="#999999", linewidth=0.8, linestyle=":")
        axes.set_yticks(
            range(len(rows)),
            [f"{row.name} ({row.verdict})" if row.verdict else row.name for row in rows],
        )
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.set_xlabel(f"loss minus {report.reference_name}'s (nats per token; right is worse)")
        axes.set_title(f"Differences to {report.reference_name}: ours beside the published")
        figure.legend(handles=_legend_dots(report), loc="outside upper right", ncols=2, fontsize=8)
        small_print = (
            f"Ours: group {report.group.name}, corpus {report.group.runs[0].config.data.name}. "
            f"Published: {published.SOURCE_SHORT}, about 1B parameters, corpus and budget not given.\n"
            "Models and corpora differ, and so do the scales: compare order and signs, not sizes."
        )
        figure.supxlabel(small_print, fontsize=7, color="#555555")
        return _png(figure)


def _published_first(row: Row) -> tuple[bool, float, bool, float, str]:
    """The published order, then what nobody has published, by our loss."""
    theirs, ours = row.published_loss, row.loss_mean
    return (theirs is None, theirs or 0.0, ours is None, ours or 0.0, row.label)


def _legend_dots(report: Report) -> list[Line2D]:
    several = any(row.delta_sd is not None for row in report.rows)
    ours = f"ours ({'bars: one sd of the differences' if several else 'one seed'})"
    grey = "#555555"
    return [
        Line2D([], [], color=grey, marker="o", linestyle="", markersize=6, label=ours),
        Line2D(
            [],
            [],
            color=grey,
            marker="o",
            linestyle="",
            markersize=8,
            markerfacecolor="white",
            label="published",
        ),
    ]


def _png(figure: Figure) -> bytes:
    buffer = io.BytesIO()
    # Without matplotlib's version among the metadata: the picture alone decides the bytes.
    figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()
