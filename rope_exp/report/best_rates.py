"""Differences between variants at a common learning rate and at each variant's best rate.

They show whether a difference is due to tuning (docs/protocol.md).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import pandas as pd

from rope_exp.evidence.comparable import check_blocks
from rope_exp.evidence.rates import best_rate, common_rate, losses_by_rate, mean_by_rate
from rope_exp.evidence.runs import ReportError, Run
from rope_exp.report.content import build
from rope_exp.report.spelling import markdown_table, span


class _Delta(NamedTuple):
    """The mean difference within a seed, and the number of seeds."""

    mean: float
    num_seeds: int


@dataclass(frozen=True)
class _Tried:
    """The losses of variants at their learning rates, by label.

    Attributes:
        tables: losses; a column for each rate, a line for each seed with several rates.
        common, best: the common rate, and the best rate of each variant.
    """

    names: Mapping[str, str]
    tables: Mapping[str, pd.DataFrame]
    common: Mapping[str, float]
    best: Mapping[str, float]

    def deltas(self, a: str, b: str) -> tuple[_Delta | None, _Delta | None]:
        """Return the loss of b minus the loss of a, at the common rate and at the best rates."""
        return _mean(self._by_seed(a, b, self.common)), _mean(self._by_seed(a, b, self.best))

    def deltas_of_shared_seeds(self, a: str, b: str) -> tuple[_Delta | None, _Delta | None]:
        """Return the same over the seeds with both differences, so that only the rates differ."""
        at_common, at_best = self._by_seed(a, b, self.common), self._by_seed(a, b, self.best)
        shared = at_common.index.intersection(at_best.index)
        return _mean(at_common[shared]), _mean(at_best[shared])

    def _by_seed(self, a: str, b: str, rates: Mapping[str, float]) -> "pd.Series[float]":
        if a not in self.tables or b not in self.tables:
            return pd.Series(dtype=float)
        of_a, of_b = self.tables[a], self.tables[b]
        if rates[a] not in of_a or rates[b] not in of_b:
            return pd.Series(dtype=float)
        return (of_b[rates[b]] - of_a[rates[a]]).dropna()


def _mean(differences: "pd.Series[float]") -> _Delta | None:
    return None if differences.empty else _Delta(float(differences.mean()), len(differences))


def best_rates_file(runs: Sequence[Run]) -> bytes:
    """Return rates.md: losses by learning rate, and differences at common and best rates.

    Args:
        runs: equal except for variant, seed and learning rate, with at least two rates.
    Raises:
        ReportError: the runs differ in more, a block's runs were computed differently, or no
            variant has two rates at one seed.
    """
    check_blocks(runs)
    finished = [run for run in runs if run.loss is not None]
    tables = losses_by_rate(finished)
    if not tables:
        raise ReportError("no variant was run at two rates and one seed")
    common = common_rate(finished, tables)
    tried = _Tried(
        {run.config.pe.label: run.variant_name for run in finished},
        tables,
        dict.fromkeys(tables, common),
        {label: best_rate(table) for label, table in tables.items()},
    )
    report = build([run for run in finished if run.config.optim.lr == common], ["pe"])

    parts = [
        "**The loss of each variant by its learning rate, and at its best.** Means, as if all of a "
        "variant's seeds had been run at each rate: what a rate lacks is filled by the mean "
        "difference between rates within the others.",
        markdown_table(_by_rate(tried), ".4f"),
    ]
    differences = _differences(tried, report.reference.label)
    if len(differences):
        parts += [
            f"**Differences to {report.reference.name} at the common rate of {common:g}, and with "
            "each variant at its best.** Over the seeds that both have there (how many), untested. "
            "The best of several runs flatters, noisy variants most.",
            markdown_table(differences),
        ]
    relations = _relations(tried, report.source.relations if report.source else ())
    if len(relations):
        parts += [
            "**The published relations: the second's loss minus the first's, over the seeds that "
            "have both.** One whose sign is another at each variant's best rate is open, whatever "
            "its verdict at the common rate.",
            markdown_table(relations),
        ]
    return ("\n\n".join(parts) + "\n").encode()


def _by_rate(tried: _Tried) -> pd.DataFrame:
    """Return a line for each variant, best first."""
    rates = sorted({*pd.concat(tried.tables.values()).columns})
    means = {label: mean_by_rate(table) for label, table in tried.tables.items()}
    lines = []
    for label in sorted(means, key=lambda label: means[label].min()):
        own = means[label].index.to_numpy(dtype=float)
        is_end = tried.best[label] in (own.min(), own.max())
        at_end = " (the last that was tried)" if is_end else ""
        told = {"variant": tried.names[label], "seeds": span(tried.tables[label].count())}
        of_rates = {f"{rate:g}": means[label].get(rate) for rate in rates}
        lines.append({**told, **of_rates, "best rate": f"{tried.best[label]:g}{at_end}"})
    return pd.DataFrame(lines)


def _differences(tried: _Tried, reference: str) -> pd.DataFrame:
    """Return each variant's differences to the reference, sorted by those at the best rates."""
    found = {label: tried.deltas(reference, label) for label in tried.tables}
    at_best = {label: delta for label, (_, delta) in found.items() if delta is not None}
    lines = []
    for label in sorted(at_best, key=lambda label: at_best[label].mean):
        lines.append(
            {
                "variant": tried.names[label],
                "Δ, common rate": _spell(found[label][0]),
                "Δ, each at its best": _spell(at_best[label]),
            }
        )
    return pd.DataFrame(lines)


def _relations(tried: _Tried, relations: Sequence[tuple[str, str, str]]) -> pd.DataFrame:
    """Return a line for each published relation with both differences."""
    lines = []
    for a, sign, b in relations:
        at_common, at_best = tried.deltas_of_shared_seeds(a, b)
        if at_common is not None and at_best is not None:
            is_kept = (at_common.mean > 0) == (at_best.mean > 0)
            lines.append(
                {
                    "published": f"{tried.names[a]} {sign} {tried.names[b]}",
                    "Δ, common rate": _spell(at_common),
                    "Δ, each at its best": _spell(at_best),
                    "sign": "the same" if is_kept else "another: open",
                }
            )
    return pd.DataFrame(lines)


def _spell(delta: _Delta | None) -> str | None:
    return None if delta is None else f"{delta.mean:+.4f} ({delta.num_seeds})"
