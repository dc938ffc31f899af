"""Variants at one rate and each at its own best: is a difference tuning? (docs/protocol.md)"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from rope_exp.evidence.comparable import check_blocks
from rope_exp.evidence.rates import best_rate, common_rate, losses_by_rate, shared_seeds
from rope_exp.evidence.runs import Run
from rope_exp.report.content import build
from rope_exp.report.spelling import markdown_table


@dataclass(frozen=True)
class _Tried:
    """What variants have at their rates, by label.

    Attributes:
        tables: losses over the seeds that all rates of a variant have, a column a rate.
        common, best: the rate that all share, and each one's own.
    """

    names: Mapping[str, str]
    tables: Mapping[str, pd.DataFrame]
    common: Mapping[str, float]
    best: Mapping[str, float]

    def deltas(self, a: str, b: str) -> tuple[float | None, float | None]:
        """Return the loss of b minus that of a, at the common rate and each at its best."""
        return self._delta(a, b, self.common), self._delta(a, b, self.best)

    def _delta(self, a: str, b: str, rates: Mapping[str, float]) -> float | None:
        """Return None where no seed has both."""
        if a not in self.tables or b not in self.tables:
            return None
        of_a, of_b = self.tables[a], self.tables[b]
        if rates[a] not in of_a or rates[b] not in of_b:
            return None
        differences = (of_b[rates[b]] - of_a[rates[a]]).dropna()
        return None if differences.empty else float(differences.mean())


def best_rates_file(runs: Sequence[Run]) -> bytes:
    """Return rates.md: losses by rate, and differences at the common and at each row's best rate.

    Args:
        runs: equal but for variant, seed and rate, of two rates at least.
    Raises:
        ReportError: they are not, or a block's runs are not computed alike.
    """
    check_blocks(runs)
    finished = [run for run in runs if run.loss is not None]
    tables = {label: shared_seeds(table) for label, table in losses_by_rate(finished).items()}
    common = common_rate(finished, tables)
    tried = _Tried(
        {run.config.pe.label: run.variant_name for run in finished},
        tables,
        dict.fromkeys(tables, common),
        {label: best_rate(table) for label, table in tables.items()},
    )
    report = build([run for run in finished if run.config.optim.lr == common], ["pe"])
    source = report.published or report.claim

    parts = [
        "**The loss of each variant by its learning rate, and at its best.** Means over the seeds "
        "that all rates of a variant have.",
        markdown_table(_by_rate(tried), ".4f"),
    ]
    if report.reference.runs:
        parts += [
            f"**Differences to {report.reference.name} at the common rate of {common:g}, and with "
            "each variant at its best.** Over those seeds, untested. The best of several runs "
            "flatters, noisy variants most.",
            markdown_table(_differences(tried, report.reference.label)),
        ]
    relations = _relations(tried, source.relations if source else ())
    if len(relations):
        parts += [
            "**The published relations: the second's loss minus the first's.** One whose sign is "
            "another at each variant's best rate is open, whatever its verdict at the common rate.",
            markdown_table(relations),
        ]
    return ("\n\n".join(parts) + "\n").encode()


def _by_rate(tried: _Tried) -> pd.DataFrame:
    """Return a line a variant, best first."""
    rates = sorted({*pd.concat(tried.tables.values()).columns})
    lowest = {label: table.mean().min() for label, table in tried.tables.items()}
    lines = []
    for label in sorted(lowest, key=lambda label: lowest[label]):
        table = tried.tables[label]
        of_rates = {f"{rate:g}": table.mean().get(rate) for rate in rates}
        own = table.columns.to_numpy(dtype=float)
        is_end = tried.best[label] in (own.min(), own.max())
        at_end = " (the last that was tried)" if is_end else ""
        told = {"variant": tried.names[label], "seeds": str(len(table)), **of_rates}
        lines.append({**told, "best rate": f"{tried.best[label]:g}{at_end}"})
    return pd.DataFrame(lines)


def _differences(tried: _Tried, reference: str) -> pd.DataFrame:
    """Return each variant's differences to the reference, best first at the best rates."""
    found = {label: tried.deltas(reference, label) for label in tried.tables}
    at_best = {label: delta for label, (_, delta) in found.items() if delta is not None}
    lines = []
    for label in sorted(at_best, key=lambda label: at_best[label]):
        lines.append(
            {
                "variant": tried.names[label],
                "Δ, common rate": _spell(found[label][0]),
                "Δ, each at its best": _spell(at_best[label]),
            }
        )
    return pd.DataFrame(lines)


def _relations(tried: _Tried, relations: Sequence[tuple[str, str, str]]) -> pd.DataFrame:
    """Return the published relations that have both differences."""
    lines = []
    for a, sign, b in relations:
        at_common, at_best = tried.deltas(a, b)
        if at_common is not None and at_best is not None:
            is_kept = (at_common > 0) == (at_best > 0)
            lines.append(
                {
                    "published": f"{tried.names[a]} {sign} {tried.names[b]}",
                    "Δ, common rate": _spell(at_common),
                    "Δ, each at its best": _spell(at_best),
                    "sign": "the same" if is_kept else "another: open",
                }
            )
    return pd.DataFrame(lines)


def _spell(delta: float | None) -> str | None:
    return None if delta is None else f"{delta:+.4f}"
