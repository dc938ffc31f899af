"""The pilot's noise: standard deviations, the effect of pairing, rounding, and window errors.

The campaign `noise` varies initial weights, order of tokens and rounding, and makes no table.
"""

import math
from collections.abc import Collection, Mapping, Sequence

import pandas as pd

from rope_exp.evidence.comparable import check_seeds
from rope_exp.evidence.runs import Run
from rope_exp.evidence.significance import MARGIN
from rope_exp.report.content import Report
from rope_exp.report.paper.style import files_of
from rope_exp.report.spelling import NOTHING, markdown_table
from rope_exp.studies.noise.figure import deviations
from rope_exp.studies.noise.measures import Spread, changes, rounding, spreads, window_errors
from rope_exp.system.errors import show

CAMPAIGN = "noise"

# The largest allowed error from held-out windows, as a share of the margin.
WINDOWS_SHARE = 1 / 3


def files(
    asked: Collection[str], records: Mapping[str, Sequence[Run]], tables: Mapping[str, Report]
) -> dict[str, bytes]:
    """Return the pilot's files, if it is asked for."""
    if CAMPAIGN not in asked:
        return {}
    made = noise_files(records[CAMPAIGN])
    return {f"{CAMPAIGN}/{name}": content for name, content in made.items()}


def noise_files(runs: Sequence[Run]) -> dict[str, bytes]:
    """Return the pilot's files by name, as far as its records allow.

    Raises:
        ReportError: a seed's run is recorded under the number of another seed.
    """
    check_seeds(runs)
    found = spreads(runs)
    changed = rounding(runs)
    windows = window_errors(runs)
    files = {
        "noise.md": _markdown(runs, found, changed, windows),
        "spreads.csv": _spreads_csv(found),
        "rounding.csv": changed.to_csv(index=False, float_format="%.6f"),
        "windows.csv": windows.to_csv(index=False, float_format="%.6f"),
    }
    written = {name: text.encode() for name, text in files.items()}
    # Only plain cells name rows: others may rotate in bf16, and include that in their name.
    names = {run.row: run.variant_name for run in runs if not changes(run)}
    return written | files_of("deviations", deviations(found, names))


def _markdown(
    runs: Sequence[Run], found: Sequence[Spread], changed: pd.DataFrame, windows: pd.DataFrame
) -> str:
    train = runs[0].config.train
    hours = sum(run.result["wall_s"] for run in runs if run.result) / 3600
    parts = [
        f"**Noise in the pilot: {len(runs)} runs of {train.num_tokens:,} tokens each "
        f"({hours:.1f} hours), corpus {runs[0].config.data.name}; nats per token.**"
    ]
    if found:
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


def _spreads_table(found: Sequence[Spread]) -> pd.DataFrame:
    lines = []
    for spread in found:
        cells: dict[str, object] = {"what varies": spread.what, "values": spread.count}
        cells |= {f"sd {row}": value for row, value in spread.losses.items()}
        for a, b in spread.paired:
            cells[f"sd {b} - {a}, paired"] = spread.paired[a, b]
            cells[f"sd {b} - {a}, unpaired"] = spread.unpaired[a, b]
        cells["paired / unpaired"] = NOTHING if spread.ratio is None else f"{spread.ratio:.2f}"
        low, high = spread.known_within
        cells["95 % interval: sd times"] = f"{low:.2f} to {high:.2f}"
        lines.append(cells)
    return pd.DataFrame(lines)


def _spreads_csv(found: Sequence[Spread]) -> str:
    lines = []
    for spread in found:
        for row, value in spread.losses.items():
            lines.append((spread.what, spread.count, row, "loss", value))
        for (a, b), value in spread.paired.items():
            lines.append((spread.what, spread.count, f"{b} - {a}", "paired", value))
            unpaired = spread.unpaired[a, b]
            lines.append((spread.what, spread.count, f"{b} - {a}", "unpaired", unpaired))
    columns = ["what", "values", "of", "kind", "sd"]
    return pd.DataFrame(lines, columns=columns).to_csv(index=False, float_format="%.6f")
