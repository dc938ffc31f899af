"""Variants at one rate and each at its own best: is a difference tuning? (docs/protocol.md)"""

from collections.abc import Mapping, Sequence

import pandas as pd

from rope_exp.evidence.comparable import check_blocks
from rope_exp.evidence.published import REFERENCE, TABLE
from rope_exp.evidence.rates import best_rate, common_rate, losses_by_rate, shared_seeds
from rope_exp.evidence.runs import Run
from rope_exp.report.spelling import markdown_table


def best_rates_file(runs: Sequence[Run]) -> bytes:
    """Return rates.md: losses by rate, and differences at the common and at each row's best rate.

    Args:
        runs: equal but for variant, seed and rate, of two rates at least.
    Raises:
        ReportError: they are not, or a block's runs are not computed alike.
    """
    check_blocks(runs)
    finished = [run for run in runs if run.loss is not None]
    names = {run.config.pe.label: run.variant_name for run in finished}
    tables = {label: shared_seeds(table) for label, table in losses_by_rate(finished).items()}
    common = common_rate(finished, tables)
    best = {label: best_rate(table) for label, table in tables.items()}

    parts = [
        "**The loss of each variant by its learning rate, and at its best.** Means over the seeds "
        "that all rates of a variant have.",
        markdown_table(_by_rate(tables, names, best), ".4f"),
        f"**Differences at the common rate of {common:g}, and with each variant at its best.** "
        "Over those seeds, untested. The best of several runs flatters, noisy variants most.",
        markdown_table(_differences(tables, names, dict.fromkeys(best, common), best)),
        "**The published relations: the second's loss minus the first's.** One whose sign is "
        "another at each variant's best rate is open, whatever its verdict at the common rate.",
        markdown_table(_relations(tables, names, dict.fromkeys(best, common), best)),
    ]
    return ("\n\n".join(parts) + "\n").encode()


def _by_rate(
    tables: Mapping[str, pd.DataFrame], names: Mapping[str, str], best: Mapping[str, float]
) -> pd.DataFrame:
    """Return a line a variant, best first."""
    tried = sorted({*pd.concat(tables.values()).columns})
    lines = []
    for label, table in tables.items():
        means = table.mean()
        of_rates = {f"{rate:g}": means.get(rate) for rate in tried}
        rates = table.columns.to_numpy(dtype=float)
        ends = (rates.min(), rates.max())
        at_end = " (the last that was tried)" if best[label] in ends else ""
        told = {"variant": names[label], "seeds": str(len(table)), **of_rates}
        lines.append({**told, "best rate": f"{best[label]:g}{at_end}"})
    lowest = {names[label]: table.mean().min() for label, table in tables.items()}
    return pd.DataFrame(lines).sort_values("variant", key=lambda column: column.map(lowest))


def _differences(
    tables: Mapping[str, pd.DataFrame],
    names: Mapping[str, str],
    common: Mapping[str, float],
    best: Mapping[str, float],
) -> pd.DataFrame:
    """Return each variant's difference to the reference, best first at the best rates."""
    found = []
    for label in tables:
        at_best = _delta(tables, REFERENCE, label, best)
        if at_best is not None:
            found.append((at_best, label, _delta(tables, REFERENCE, label, common)))
    return pd.DataFrame(
        {
            "variant": names[label],
            f"Δ to {names[REFERENCE]}, common rate": _spell(at_common),
            "Δ, each at its best": _spell(at_best),
        }
        for at_best, label, at_common in sorted(found)
    )


def _relations(
    tables: Mapping[str, pd.DataFrame],
    names: Mapping[str, str],
    common: Mapping[str, float],
    best: Mapping[str, float],
) -> pd.DataFrame:
    lines = []
    for a, sign, b in TABLE.relations:
        at_common = _delta(tables, a, b, common)
        at_best = _delta(tables, a, b, best)
        if at_common is not None and at_best is not None:
            is_kept = (at_common > 0) == (at_best > 0)
            lines.append(
                {
                    "published": f"{names[a]} {sign} {names[b]}",
                    "Δ, common rate": _spell(at_common),
                    "Δ, each at its best": _spell(at_best),
                    "sign": "the same" if is_kept else "another: open",
                }
            )
    return pd.DataFrame(lines)


def _delta(
    tables: Mapping[str, pd.DataFrame], a: str, b: str, rates: Mapping[str, float]
) -> float | None:
    """Return the loss of b minus that of a, each at its rate; None where no seed has both."""
    if a not in tables or b not in tables:
        return None
    if rates[a] not in tables[a] or rates[b] not in tables[b]:
        return None
    differences = (tables[b][rates[b]] - tables[a][rates[a]]).dropna()
    return None if differences.empty else float(differences.mean())


def _spell(delta: float | None) -> str | None:
    return None if delta is None else f"{delta:+.4f}"
