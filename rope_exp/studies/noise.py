"""The pilot's noise: standard deviations, the effect of pairing, rounding, and window errors.

The campaign `noise` makes no table: each cell is one variant. Seeds of initial weights and of order
vary alone or together, and so does the way in which the same numbers are computed. In nats.
"""

import itertools
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from rope_exp.evidence.comparable import OWN_RATE, check_seeds
from rope_exp.evidence.contrasts import Array
from rope_exp.evidence.runs import Run
from rope_exp.evidence.significance import MARGIN
from rope_exp.plan.campaign_file import SEEDS
from rope_exp.report.content import Report
from rope_exp.report.spelling import NOTHING, markdown_table
from rope_exp.system.errors import show

# A document of the English corpus fills about nine of the windows spread over it.
WINDOWS_OF_A_BLOCK = 8
NUM_BOOTSTRAPS = 10_000
LEAST_VALUES = 3  # for a standard deviation
CAMPAIGN = "noise"

# The largest allowed error from held-out windows, as a share of the margin.
WINDOWS_SHARE = 1 / 3


def files(
    asked: Collection[str], records: Mapping[str, Sequence[Run]], tables: Mapping[str, Report]
) -> dict[str, bytes]:
    """Return the pilot's files, if it is asked for, as far as its records allow.

    Raises:
        ReportError: a seed's run is recorded under the number of another seed.
    """
    if CAMPAIGN not in asked:
        return {}
    runs = records[CAMPAIGN]
    check_seeds(runs)
    found = spreads(runs)
    changed = rounding(runs)
    windows = window_errors(runs)
    made = {
        "noise.md": _markdown(runs, found, changed, windows),
        "spreads.csv": found.to_csv(index=False, float_format="%.6f"),
        "rounding.csv": changed.to_csv(index=False, float_format="%.6f"),
        "windows.csv": windows.to_csv(index=False, float_format="%.6f"),
    }
    return {f"{CAMPAIGN}/{name}": text.encode() for name, text in made.items()}


def _markdown(
    runs: Sequence[Run], found: pd.DataFrame, changed: pd.DataFrame, windows: pd.DataFrame
) -> str:
    train = runs[0].config.train
    hours = sum(run.result["wall_s"] for run in runs if run.result) / 3600
    parts = [
        f"**Noise in the pilot: {len(runs)} runs of {train.num_tokens:,} tokens each "
        f"({hours:.1f} hours), corpus {runs[0].config.data.name}; nats per token.**"
    ]
    if len(found):
        parts += [
            "Standard deviation (sd) of losses when one source varies, and of the difference "
            "between two rows: at the same value of the source (paired) and at different values "
            "(unpaired). Multiply an sd by the factors in the last column for its 95 % interval. "
            "The interval of an unpaired difference, which uses the values of two rows, is no "
            "wider.",
            markdown_table(_spreads_table(found), ".4f"),
        ]
    if len(changed):
        parts += [
            "Change in the loss when the same run is computed differently, and change in the "
            "differences between rows:",
            markdown_table(changed.assign(rate=changed["rate"].map(show)), "+.4f"),
        ]
    if len(windows):
        parts += [
            "Standard error, from the choice of held-out windows, of a difference averaged over "
            "seeds: bootstrap over windows and over blocks of eight neighbours:",
            markdown_table(windows.assign(rate=windows["rate"].map(show)), ".4f"),
            _windows_needed(windows),
        ]
    return "\n\n".join(parts) + "\n"


def _windows_needed(windows: pd.DataFrame) -> str:
    allowed = MARGIN * WINDOWS_SHARE
    errors = windows[["error", "error of blocks"]].max(axis="columns")
    needed = math.ceil((windows["windows"] * (errors / allowed) ** 2).max())
    there = ", ".join(f"{count}" for count in sorted(set(windows["windows"])))
    return (
        f"For an error below a third of the margin ({allowed:.4f} nats), the noisiest pair needs "
        f"{needed} windows; there are {there}."
    )


def _spreads_table(found: pd.DataFrame) -> pd.DataFrame:
    lines = []
    for (what, count), part in found.groupby(["what", "values"], sort=False):
        cells: dict[str, object] = {"what varies": what, "values": count}
        for of, kind, sd in part[["of", "kind", "sd"]].itertuples(index=False):
            cells[f"sd {of}" if kind == "loss" else f"sd {of}, {kind}"] = sd
        # Root mean squares over pairs.
        squares = (part["sd"] ** 2).groupby(part["kind"]).mean()
        unpaired = squares.get("unpaired", 0.0)
        ratio = math.sqrt(squares["paired"] / unpaired) if unpaired else None
        cells["paired / unpaired"] = NOTHING if ratio is None else f"{ratio:.2f}"
        df = part["values"].iloc[0] - 1
        low, high = (math.sqrt(df / stats.chi2.ppf(q, df)) for q in (0.975, 0.025))
        cells["95 % interval: sd times"] = f"{low:.2f} to {high:.2f}"
        lines.append(cells)
    return pd.DataFrame(lines)


# -- measures --------------------------------------------------------------------------------------


def spreads(runs: Sequence[Run]) -> pd.DataFrame:
    """Return standard deviations when weights, order or both vary, at each learning rate.

    Columns: what varies, the number of its values (at least three: two say nothing), and the sd of
    a row's loss, or of two rows' difference at the same value (paired) or at different ones.
    """
    lines = []
    for rate, of_rate in by_rate(runs).items():
        plain = [run for run in of_rate if not changes(run)]
        first = min((run.config.seed for run in plain), default=0)
        kinds = {
            "initial weights": [run for run in plain if run.config.order_seed == first],
            "order of batches": [run for run in plain if run.config.seed == first],
            "weights and order": [run for run in plain if run.config.seed == run.config.order_seed],
        }
        for what, varying in kinds.items():
            lines += _spread(f"{what}, at learning rate {show(rate)}", varying)
    return pd.DataFrame(lines, columns=["what", "values", "of", "kind", "sd"])


def by_rate(runs: Sequence[Run]) -> dict[float, list[Run]]:
    """Return the finished runs of each learning rate, in ascending order."""
    found: dict[float, list[Run]] = {}
    for run in sorted(runs, key=lambda run: run.config.optim.lr):
        if run.loss is not None:
            found.setdefault(run.config.optim.lr, []).append(run)
    return found


def changes(run: Run) -> dict[str, Any]:
    """Return a cell's departures from the plain ones: all factors but seeds and learning rate."""
    return {key: value for key, value in run.factors.items() if key not in (*SEEDS, OWN_RATE)}


def rounding(runs: Sequence[Run]) -> pd.DataFrame:
    """Return the change of each row's loss, and of pairs' differences, by change of computation.

    A line for each learning rate, change and choice of seeds, against the plain cell of the same
    seeds; columns are rows and pairs, NaN where a cell is missing.
    """
    lines = []
    for rate, of_rate in by_rate(runs).items():
        plain = {(run.row, _seeds(run)): _loss(run) for run in of_rate if not changes(run)}
        found: dict[tuple[str, tuple[int, int]], dict[str, float]] = {}
        for run in of_rate:
            before = plain.get((run.row, _seeds(run)))
            if changes(run) and before is not None:
                what = ", ".join(f"{key}={show(value)}" for key, value in changes(run).items())
                found.setdefault((what, _seeds(run)), {})[run.row] = _loss(run) - before
        lines += [{"rate": rate, "change": what, **of_rows} for (what, _), of_rows in found.items()]

    table = pd.DataFrame(lines)
    rows = [column for column in table.columns if column not in ("rate", "change")]
    for a, b in itertools.combinations(rows, 2):
        table[f"{b} - {a}"] = table[b] - table[a]
    return table


def window_errors(runs: Sequence[Run]) -> pd.DataFrame:
    """Return the standard error of each pair's difference due to the choice of held-out windows.

    The bootstrap resamples single windows, and blocks of neighbours. Plain runs' differences are
    first averaged over the seeds that vary together: the windows are one draw for all seeds.
    """
    rows = []
    for rate, of_rate in by_rate(runs).items():
        losses: dict[str, dict[tuple[int, int], Array]] = {}
        for run in of_rate:
            if not changes(run) and len(set(_seeds(run))) == 1 and "windows" in run.probes:
                windows_N = np.array(run.probes["windows"]["loss"])
                losses.setdefault(run.row, {})[_seeds(run)] = windows_N

        for a, b in itertools.combinations(losses, 2):
            shared = sorted(losses[a].keys() & losses[b].keys())
            if not shared:
                continue
            differences_N = np.mean([losses[b][seed] - losses[a][seed] for seed in shared], axis=0)
            rows.append(
                {
                    "rate": rate,
                    "pair": f"{b} - {a}",
                    "seeds": len(shared),
                    "windows": len(differences_N),
                    "delta": float(differences_N.mean()),
                    "error": bootstrap_error(differences_N, 1),
                    "error of blocks": bootstrap_error(differences_N, WINDOWS_OF_A_BLOCK),
                }
            )
    return pd.DataFrame(rows)


def bootstrap_error(values_N: Array, block: int, seed: int = 0) -> float:
    """Return the standard error of a mean, by resampling blocks of neighbouring values.

    Values at the end that do not fill a block are left out.
    """
    means_M = values_N[: len(values_N) // block * block].reshape(-1, block).mean(axis=1)
    random = np.random.default_rng(seed)
    drawn = random.integers(len(means_M), size=(NUM_BOOTSTRAPS, len(means_M)))
    return float(means_M[drawn].mean(axis=1).std(ddof=1))


def _loss(run: Run) -> float:
    assert run.loss is not None, run.where
    return run.loss


def _seeds(run: Run) -> tuple[int, int]:
    return run.config.seed, run.config.order_seed


def _spread(what: str, runs: Sequence[Run]) -> list[tuple[Any, ...]]:
    found: dict[str, dict[tuple[int, int], float]] = {}
    for run in runs:
        found.setdefault(run.row, {})[_seeds(run)] = _loss(run)
    table = pd.DataFrame(found).sort_index().dropna()
    if len(table) < LEAST_VALUES:
        return []

    lines = [(row, "loss", table[row].std()) for row in table]
    for a, b in itertools.combinations(table, 2):
        lines.append((f"{b} - {a}", "paired", (table[b] - table[a]).std()))
        # Over all pairs of different values, the difference's variance is the sum of both.
        unpaired = math.sqrt(table[a].var() + table[b].var())
        lines.append((f"{b} - {a}", "unpaired", unpaired))
    return [(what, len(table), *line) for line in lines]
