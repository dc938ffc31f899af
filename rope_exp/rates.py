"""Learning rates: each variant's best one, and the differences between variants there.

They show whether a difference is due to tuning (paper/protocol.md). Learning rates are
compared within a seed; a seed that was run at a single learning rate says nothing about them.
"""

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from rope_exp import comparable
from rope_exp.comparable import OF_ROW, ROW, ROW_RATE, SEEDS, label_of, row_factors, spelled
from rope_exp.config import differing_keys
from rope_exp.errors import log
from rope_exp.files import path_name
from rope_exp.folder import ReportError, Run
from rope_exp.report import build
from rope_exp.stats import adjusted_means
from rope_exp.tables import markdown_table, number, paragraphs, span

# Loss at positions 8-32 minus loss at 128-256, in nats. The runs of rates_26m that ended low
# (paper/protocol-2.md, section 6) gain 0.19 to 0.23; all others of its records, at most 0.16.
FAR_GAIN = 0.18
BEST = "Δ, each at its best"


def files(campaigns: Collection[str], records: Mapping[str, Sequence[Run]]) -> dict[str, bytes]:
    """Return rates.md for each rate series in some campaigns.

    A rate series is the runs that differ in row, seed and learning rate only. `records` has the
    runs of every campaign, because a rate series may include another campaign's.
    """
    # A campaign lends runs only if its learning rate is a factor, or a single value. Otherwise its
    # rows have learning rates that were chosen for them.
    lending = {}
    for name, runs in records.items():
        is_factor = all(ROW_RATE in run.factors for run in runs)
        if is_factor or len(_rates(runs)) < 2:
            lending[name] = runs

    made: dict[str, bytes] = {}
    for name in campaigns:
        others: list[Run] = []
        for other, runs in lending.items():
            if other != name:
                others += runs
        series = find_rate_series(records[name], others)
        for runs in series:
            keys = sorted(runs[0].factors.keys() - {ROW_RATE, *SEEDS})
            level = path_name("-".join(f"{key}={spelled(runs[0].config, key)}" for key in keys))
            file = f"rates-{level}.md" if level and len(series) > 1 else "rates.md"
            made |= {f"{name}/{path}": content for path, content in of_group(runs, file).items()}
    return made


def of_group(runs: Sequence[Run], file: str = "rates.md") -> dict[str, bytes]:
    """Return rates.md of runs with several learning rates; else nothing."""
    if len(_rates(runs)) < 2:
        return {}
    try:
        return {file: markdown(runs).encode()}
    except ReportError as error:
        log(f"{runs[0].group}: {file} is left out: {error}")
        return {}


def _rates(runs: Iterable[Run]) -> set[float]:
    return {run.config.optim.lr for run in runs}


def find_rate_series(runs: Sequence[Run], others: Iterable[Run]) -> list[list[Run]]:
    """Return a campaign's rate series: runs that differ in row, seed and learning rate only.

    Other campaigns' runs of its variants that fit are added, except

    - runs with a row name;
    - runs whose environment must not share a block with the campaign's runs of the seed;
    - runs of a cell that the campaign has.

    Args:
        runs: the campaign's runs.
        others: runs that other campaigns lend.
    Returns:
        The runs of each series that has two learning rates or more.
    """
    # Runs of one seed that read different tokens form no block.
    factors = {factor for run in runs for factor in run.factors}
    if comparable.ORDER in factors or ROW_RATE not in factors:
        return []
    rate_series: list[list[Run]] = []
    may_differ = (ROW_RATE, "seed", *(OF_ROW if row_factors(runs) == [ROW] else ("pe",)))
    labels = {_label(run) for run in runs}
    for run in runs:
        series = _fitting(rate_series, run, may_differ)
        if series is None:
            rate_series.append([run])
        elif _has_room(series, run):
            series.append(run)

    for run in others:
        is_of_row = run.config.row_name is None and _label(run) in labels
        series = _fitting(rate_series, run, may_differ) if is_of_row else None
        if series is not None and _has_room(series, run) and _shares_block(series, run):
            series.append(run)
    return [series for series in rate_series if len(_rates(series)) > 1]


def _fitting(
    rate_series: Iterable[list[Run]], run: Run, may_differ: Sequence[str]
) -> list[Run] | None:
    """Return the series whose runs differ from a run only in keys that may differ."""
    for series in rate_series:
        if alike(series[0], run, may_differ):
            return series
    return None


def _has_room(series: Iterable[Run], run: Run) -> bool:
    """Return whether a series lacks a run of this learning rate, row and seed."""
    return all(_cell(run) != _cell(other) for other in series)


def _shares_block(series: Iterable[Run], run: Run) -> bool:
    """Return whether a run's environment lets it share a block with its seed's runs in a series."""
    block = [other for other in series if other.config.seed == run.config.seed]
    return not comparable.mixed_blocks([*block, run])


def alike(first: Run, second: Run, may_differ: Sequence[str]) -> bool:
    """Return whether two runs may be compared.

    Args:
        first: a run of any campaign.
        second: a run of the same campaign or another.
        may_differ: the keys or sections in which they may differ.
    Returns:
        True if they read one corpus, and all other keys that can change a number are equal.
    """
    is_one_corpus = first.result.get("data_sha256") == second.result.get("data_sha256")
    return is_one_corpus and not differing_keys(
        first.config.affecting_values, second.config.affecting_values, may_differ
    )


def _cell(run: Run) -> tuple[float, str, int]:
    return run.config.optim.lr, _label(run), run.config.seed


def _label(run: Run) -> str:
    """Return the label of a run's row in a report."""
    return label_of(run, row_factors([run]))


def _reads_far(run: Run) -> bool:
    """Return True if distant text lowers the loss by FAR_GAIN, as in runs that copy."""
    if "positions" not in run.probes:
        return False
    edges = np.array(run.probes["positions"]["edges"])
    loss_B = np.array(run.probes["positions"]["loss"])
    near_B = (edges[:-1] >= 8) & (edges[1:] <= 32)
    far_B = (edges[:-1] >= 128) & (edges[1:] <= 256)
    if not far_B.any():
        return False
    size_B = np.diff(edges)
    near = np.average(loss_B[near_B], weights=size_B[near_B])
    far = np.average(loss_B[far_B], weights=size_B[far_B])
    return bool(near - far >= FAR_GAIN)


def markdown(runs: Sequence[Run]) -> str:
    """Return rates.md: losses by learning rate, and differences at common and best rates.

    The common learning rate has the most runs; among equals, it has the lowest mean.
    """
    comparable.check_blocks(runs)
    finished = [run for run in runs if run.loss is not None]
    losses = _losses(finished)
    means = pd.DataFrame({label: adjusted_means(table) for label, table in losses.groupby("label")})
    over_variants = means.mean(axis="columns")
    counts = Counter(run.config.optim.lr for run in finished)
    common = max(counts, key=lambda rate: (counts[rate], -over_variants.get(rate, math.inf)))
    losses = losses.reindex(columns=sorted({common, *means.index}))

    at_common = [run for run in finished if run.config.optim.lr == common]
    report = build(at_common, row_factors(at_common))
    names = {_label(run): comparable.name_of(run, row_factors([run])) for run in finished}
    marked = {_cell(run)[:2] for run in finished if _reads_far(run)}
    parts = [
        f"**Each variant by learning rate.** The loss at {common:g} is a mean over seeds. At "
        "other rates: the loss minus that one within a seed, averaged (number of seeds in "
        "parentheses). Best: the lowest mean, adjusted for missing seeds by a least-squares fit of "
        "loss = seed + learning rate.",
        _markdown(_by_rate(losses, means, common, marked), names),
    ]
    if marked:
        parts.append(
            f"\\* includes a run whose loss falls by at least {FAR_GAIN} nats from positions 8 to "
            "32 to positions 128 to 256. Such runs end low, and probably copy."
        )
    num_diverged = sum(run.status == "diverged" for run in runs)
    if num_diverged:
        verb = "is" if num_diverged == 1 else "are"
        parts.append(f"{num_diverged} diverged and {verb} not shown.")

    best = means.idxmin()
    at_best = [losses.loc[(label, seed), best[label]] for label, seed in losses.index]
    both = pd.DataFrame({"Δ, common": losses[common], BEST: at_best})
    if report.reference.label in means:
        differences = both.sub(both.loc[report.reference.label], level="seed").groupby("label")
        order = differences[BEST].mean().dropna().sort_values(kind="stable").index
        parts += [
            f"**Differences from {report.reference.name} at the common learning rate of "
            f"{common:g}, and with each variant at its best.** Means over shared seeds "
            "(their number in parentheses), not tested. The best of several runs is an "
            "optimistic choice, most of all for noisy variants.",
            _markdown(differences.agg(_spell).loc[order], names),
        ]
    relations = _relations(both, names, report.source.relations)
    if relations:
        parts += [
            "**Published relations: the second variant's loss minus the first's, over the seeds "
            "that have both variants at the common rate and at their best.** If the "
            "sign changes at each variant's best learning rate, "
            "the relation is open, whatever its verdict at the common one.",
            markdown_table(pd.DataFrame(relations)),
        ]
    return paragraphs(*parts)


def _losses(runs: Sequence[Run]) -> pd.DataFrame:
    """Return losses by `label` of the variant and `seed`: a column for each learning rate.

    Seeds that were run at a single learning rate are left out, and variants whose learning rates
    share no seeds.
    """
    if runs:
        # Only for its checks.
        comparable.rows_of(runs, [*row_factors(runs), ROW_RATE])
    columns = ["rate", "label", "seed", "loss"]
    lines = pd.DataFrame([(*_cell(run), run.loss) for run in runs], columns=columns)
    losses = lines.pivot(index=["label", "seed"], columns="rate", values="loss")
    losses = losses[losses.count(axis="columns") > 1]
    losses = losses.groupby("label").filter(lambda table: not adjusted_means(table).empty)
    if losses.empty:
        raise ReportError("no variant was run at two learning rates with the same seed")
    return losses


def _by_rate(
    losses: pd.DataFrame, means: pd.DataFrame, common: float, marked: Collection[tuple[float, str]]
) -> pd.DataFrame:
    """Return a line for each variant, best first."""
    deltas = losses.sub(losses[common], axis="index").groupby("label").agg(_spell)
    at_common = losses[common].groupby("label").mean()
    lines = {}
    for label in means.min().sort_values(kind="stable").index:
        cells = {common: number(at_common[label], ".4f"), **deltas.loc[label].drop(common)}
        for rate in cells:
            if cells[rate] and (rate, label) in marked:
                cells[rate] += " \\*"

        counts = losses.loc[label].count()
        best = means[label].idxmin()
        tried = means[label].dropna().index
        at_end = " (at the end of the range)" if best in tried[[0, -1]] else ""
        lines[label] = {
            "seeds": span(counts[counts > 0]),
            f"loss at {common:g}": cells.pop(common),
            **{f"{rate:g}": cell for rate, cell in cells.items()},
            "best": f"{best:g}{at_end}",
        }
    return pd.DataFrame.from_dict(lines, orient="index")


def _relations(
    both: pd.DataFrame, names: Mapping[str, str], relations: Sequence[tuple[str, str, str]]
) -> list[dict[Any, str]]:
    """Return a line for each published relation with both differences."""
    lines = []
    for a, sign, b in relations:
        if not {a, b} <= {*both.index.get_level_values("label")}:
            continue
        # Only the learning rates differ between the two columns, not the seeds.
        shared = pd.DataFrame(both.loc[b] - both.loc[a]).dropna()
        if len(shared):
            signs = {float(shared[column].mean()) > 0 for column in shared}
            line = {column: _spell(shared[column]) for column in shared}
            line["sign"] = "the same" if len(signs) == 1 else "changed: open"
            lines.append({"published": f"{names[a]} {sign} {names[b]}", **line})
    return lines


def _markdown(table: pd.DataFrame, names: Mapping[str, str]) -> str:
    return markdown_table(table.rename(index=names).reset_index(names="variant"))


def _spell(differences: "pd.Series[float]") -> str:
    count = differences.count()
    return f"{differences.mean():+.4f} ({count})" if count else ""
