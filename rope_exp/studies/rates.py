"""Learning rates: each variant's best one, and the differences between variants there.

They show whether a difference is due to tuning (docs/paper/protocol.md). Learning rates are
compared within a seed, because means over different seeds also differ by the seeds; a seed that was
run at a single learning rate says nothing about them.
"""

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from rope_exp.comparable import (
    OF_ROW,
    OWN_RATE,
    REFUSED_WITHIN_A_BLOCK,
    ROW,
    SEEDS,
    alike,
    check_blocks,
    comparable,
    differing_surroundings,
    has_blocks,
    label_of,
    level_name,
    name_of,
    telling,
)
from rope_exp.errors import log
from rope_exp.report import Report, build, markdown_table, span
from rope_exp.runs import ReportError, Run
from rope_exp.stats import adjusted_means

# In nats. The runs of 26M tokens that ended low gain 0.19 to 0.23, all others of rates_26m at most
# 0.16 (docs/paper/protocol-2.md, section 6).
FAR_GAIN = 0.18


def files(
    asked: Collection[str], records: Mapping[str, Sequence[Run]], tables: Mapping[str, Report]
) -> dict[str, bytes]:
    """Return rates.md for each sweep of learning rates in the asked campaigns."""
    found: dict[str, bytes] = {}
    for name in asked:
        lending = [runs for each, runs in records.items() if each != name and not _is_tuned(runs)]
        sweeps = find_sweeps(records[name], [run for runs in lending for run in runs])
        for runs in sweeps:
            level = level_name(runs[0], sorted(runs[0].factors.keys() - {OWN_RATE, *SEEDS}))
            stem = f"rates-{level}" if level and len(sweeps) > 1 else "rates"
            found |= _files(name, f"{name}/{stem}.md", runs)
    return found


def _is_tuned(runs: Sequence[Run]) -> bool:
    """Return whether a campaign's rows have learning rates of their own."""
    is_swept = all(OWN_RATE in run.factors for run in runs)
    return not is_swept and len({run.config.optim.lr for run in runs}) > 1


def of_group(runs: Sequence[Run]) -> dict[str, bytes]:
    """Return rates.md of runs with several learning rates; else nothing."""
    several = len({run.config.optim.lr for run in runs}) > 1
    return _files("--factors", "rates.md", runs) if several else {}


def _files(name: str, file: str, runs: Sequence[Run]) -> dict[str, bytes]:
    try:
        return {file: markdown(Tried.of(runs)).encode()}
    except ReportError as error:
        log(f"{name}: {file.rpartition('/')[2]} is left out: {error}")
        return {}


def find_sweeps(runs: Sequence[Run], others: Iterable[Run]) -> list[list[Run]]:
    """Return a campaign's runs that differ in row, seed and learning rate only, by setting.

    Runs of other campaigns that fit are added, for variants of the campaign, unless its rows have
    names, or the seed's runs were computed elsewhere. If another campaign ran the same cell, the
    campaign's own run is used.
    """
    if not has_blocks(runs) or not any(OWN_RATE in run.factors for run in runs):
        return []
    sweeps: list[list[Run]] = []
    factors = (OWN_RATE, "seed", *(OF_ROW if telling(runs) == [ROW] else ("pe",)))
    labels = {_label(run) for run in runs}
    lent = [run for run in others if run.config.row_name is None and _label(run) in labels]
    for run in [*runs, *lent]:
        sweep = next((sweep for sweep in sweeps if alike(sweep[0], run, factors)), None)
        if sweep is None and run.group == runs[0].group:
            sweeps.append([run])
        elif sweep is not None and all(_cell(run) != _cell(other) for other in sweep):
            block = [other for other in sweep if other.config.seed == run.config.seed]
            differing = differing_surroundings([*block, run])
            if run in runs or differing.keys().isdisjoint(REFUSED_WITHIN_A_BLOCK):
                sweep.append(run)
    return [sweep for sweep in sweeps if len({run.config.optim.lr for run in sweep}) > 1]


def _cell(run: Run) -> tuple[float, str, int]:
    return run.config.optim.lr, _label(run), run.config.seed


def _label(run: Run) -> str:
    """Return the label of a run's row in a report."""
    return label_of(run, telling([run]))


# -- losses ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tried:
    """The losses of variants at the learning rates that were tried.

    Attributes:
        runs: those with a loss.
        names: the variants' names, by label.
        tables: the variants' losses by label: a column for each learning rate, a line for each
            seed that was run at two or more.
        means: the variants' means by learning rate, adjusted for missing seeds.
        common: the learning rate with the most runs; among equals, the one with the lowest mean.
        num_diverged: the number of runs that diverged.
    """

    runs: Sequence[Run]
    names: Mapping[str, str]
    tables: Mapping[str, pd.DataFrame]
    means: Mapping[str, "pd.Series[float]"]
    common: float
    num_diverged: int

    @classmethod
    def of(cls, runs: Sequence[Run]) -> "Tried":
        """Arrange runs that are equal except for variant, seed and learning rate.

        Raises:
            ReportError: they differ in more, a block's runs were computed differently, or no
                variant was run at two learning rates with one seed.
        """
        check_blocks(runs)
        finished = [run for run in runs if run.loss is not None]
        tables = losses_by_rate(finished)
        if not tables:
            raise ReportError("no variant was run at two learning rates with the same seed")
        means = {label: adjusted_means(table) for label, table in tables.items()}
        over_variants = pd.DataFrame(means).mean(axis="columns")
        counts = Counter(run.config.optim.lr for run in finished)
        return cls(
            runs=finished,
            names={_label(run): name_of(run, telling([run])) for run in finished},
            tables=tables,
            means=means,
            common=max(counts, key=lambda rate: (counts[rate], -over_variants.get(rate, math.inf))),
            num_diverged=sum(run.status == "diverged" for run in runs),
        )

    def best(self, label: str) -> float:
        """Return the learning rate with the lowest of a variant's means."""
        mean = self.means[label]
        return float(mean.index.to_numpy(dtype=float)[mean.argmin()])

    def at(self, label: str, rate: float) -> list[Run]:
        """Return a variant's runs at a learning rate."""
        return [run for run in self.runs if _label(run) == label and run.config.optim.lr == rate]

    def differences(self, a: str, b: str) -> pd.DataFrame:
        """Return the loss of b minus the loss of a, by seed: at the common and at the best rates.

        The columns `common` and `best` are NaN for a seed that lacks one of the two runs.
        """
        of_rates = {
            "common": (self.common, self.common),
            "best": (self.best(a), self.best(b)),
        }
        missing = pd.Series(dtype=float)
        found = {}
        for column, (rate_a, rate_b) in of_rates.items():
            of_a = self.tables[a].get(rate_a, missing)
            found[column] = self.tables[b].get(rate_b, missing) - of_a
        return pd.DataFrame(found, dtype=float)


def reads_far(run: Run) -> bool:
    """Return whether a run uses distant text as only runs that copy do.

    Its loss is lower at positions 128 to 256 than at 8 to 32, by at least `FAR_GAIN`.
    """
    if "positions" not in run.probes:
        return False
    edges = np.array(run.probes["positions"]["edges"])
    loss_B = np.array(run.probes["positions"]["loss"])
    near_B = (edges[:-1] >= 8) & (edges[1:] <= 32)
    far_B = (edges[:-1] >= 128) & (edges[1:] <= 256)
    if not far_B.any():
        return False
    near, far = (np.average(loss_B[bins], weights=np.diff(edges)[bins]) for bins in (near_B, far_B))
    return bool(near - far >= FAR_GAIN)


def losses_by_rate(runs: Sequence[Run]) -> dict[str, pd.DataFrame]:
    """Return each variant's losses by its label: a column per learning rate, a line per seed.

    Seeds that were run at a single learning rate are left out, and variants whose learning rates
    share no seeds.

    Raises:
        ReportError: the runs differ in more than variant, seed and learning rate.
    """
    losses: dict[str, dict[float, Mapping[int, float]]] = {}
    for row in comparable(runs, [*telling(runs), OWN_RATE]).values() if runs else ():
        first = row.runs[0]
        losses.setdefault(_label(first), {})[first.config.optim.lr] = row.losses
    tables = {}
    for label, found in losses.items():
        table = pd.DataFrame(found, dtype=float)
        table = table[table.count(axis="columns") > 1].dropna(axis="columns", how="all")
        if not table.empty and not adjusted_means(table).empty:
            tables[label] = table.sort_index().sort_index(axis="columns")
    return tables


# -- rates.md --------------------------------------------------------------------------------------


def markdown(tried: Tried) -> str:
    """Return rates.md: losses by learning rate, and differences at common and best rates."""
    at_common = [run for run in tried.runs if run.config.optim.lr == tried.common]
    report = build(at_common, telling(at_common))
    parts = [
        f"**Each variant by learning rate.** The loss at {tried.common:g} is a mean over seeds. At "
        "other rates: the loss minus that one within a seed, averaged (number of seeds in "
        "parentheses). Best: the lowest mean, adjusted for missing seeds by a least-squares fit of "
        "loss = seed + learning rate.",
        markdown_table(_by_rate(tried)),
    ]
    if any(map(reads_far, tried.runs)):
        parts.append(
            f"\\* includes a run whose loss falls by at least {FAR_GAIN} nats from positions 8 to "
            "32 to positions 128 to 256. Such runs end low, and probably copy."
        )
    if lost := tried.num_diverged:
        parts.append(f"{lost} diverged and {'is' if lost == 1 else 'are'} not shown.")
    differences = _differences(tried, report.reference.label)
    if len(differences):
        parts += [
            f"**Differences from {report.reference.name} at the common learning rate of "
            f"{tried.common:g}, and with each variant at its best.** Means over shared seeds "
            "(their number in parentheses), not tested. The best of several runs is an "
            "optimistic choice, most of all for noisy variants.",
            markdown_table(differences),
        ]
    relations = _relations(tried, report.source.relations if report.source else ())
    if len(relations):
        parts += [
            "**Published relations: the second variant's loss minus the first's, over the seeds "
            "that have both variants at the common rate and at their best.** If the "
            "sign changes at each variant's best learning rate, "
            "the relation is open, whatever its verdict at the common one.",
            markdown_table(relations),
        ]
    return "\n\n".join(parts) + "\n"


def _by_rate(tried: Tried) -> pd.DataFrame:
    """Return a line for each variant, best first."""
    rates = sorted({rate for mean in tried.means.values() for rate in mean.index})
    others = [rate for rate in rates if rate != tried.common]
    missing = pd.Series(dtype=float)
    lines = []
    for label in sorted(tried.means, key=lambda label: tried.means[label].min()):
        table = tried.tables[label]
        common = table.get(tried.common, missing).dropna()
        cells = {f"loss at {tried.common:g}": f"{common.mean():.4f}" if len(common) else None}
        cells |= {f"{rate:g}": _spell(table.get(rate, missing) - common) for rate in others}
        for rate, heading in zip([tried.common, *others], cells, strict=True):
            if cells[heading] and any(map(reads_far, tried.at(label, rate))):
                cells[heading] = f"{cells[heading]} \\*"

        best = tried.best(label)
        ends = (min(tried.means[label].index), max(tried.means[label].index))
        at_end = " (at the end of the range)" if best in ends else ""
        told = {"variant": tried.names[label], "seeds": span(table.count())}
        lines.append({**told, **cells, "best": f"{best:g}{at_end}"})
    return pd.DataFrame(lines)


def _differences(tried: Tried, reference: str) -> pd.DataFrame:
    """Return each variant's differences to the reference, sorted by those at the best rates."""
    if reference not in tried.tables:
        return pd.DataFrame()
    pairs = [(tried.names[label], tried.differences(reference, label)) for label in tried.tables]
    pairs = [(name, differences) for name, differences in pairs if differences["best"].count()]
    pairs.sort(key=lambda pair: float(pair[1]["best"].mean()))
    return pd.DataFrame([{"variant": name, **_both(found)} for name, found in pairs])


def _relations(tried: Tried, relations: Sequence[tuple[str, str, str]]) -> pd.DataFrame:
    """Return a line for each published relation with both differences."""
    lines = []
    for a, sign, b in relations:
        if a not in tried.tables or b not in tried.tables:
            continue
        # Only the learning rates differ between the two columns, not the seeds.
        shared = tried.differences(a, b).dropna()
        if len(shared):
            published = f"{tried.names[a]} {sign} {tried.names[b]}"
            is_kept = (shared.mean() > 0).nunique() == 1
            told = "the same" if is_kept else "changed: open"
            lines.append({"published": published, **_both(shared), "sign": told})
    return pd.DataFrame(lines)


def _both(differences: pd.DataFrame) -> dict[str, str | None]:
    return {
        "Δ, common": _spell(differences["common"]),
        "Δ, each at its best": _spell(differences["best"]),
    }


def _spell(differences: "pd.Series[float]") -> str | None:
    count = differences.count()
    return f"{differences.mean():+.4f} ({count})" if count else None
