"""Tables and notes of probes: results by place, longer contexts, copying, learned numbers."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from rope_exp.frames import BY_PLACE, by_place
from rope_exp.report import NOTHING, Report, markdown_table
from rope_exp.runs import Run
from rope_exp.stats import Array

PAIR_NAMES = {"qk": "q and k", "vo": "v and o", "qkvo": "q, k, v and o"}
METHOD_NAMES = {
    "as_trained": "as trained",
    "interpolation": "interpolation",
    "ntk_aware": "NTK-aware",
    "yarn": "YaRN",
}
# A run copies if a text's second reading has a loss lower by so many nats (docs/protocol-2.md).
COPIES = 0.3
# Learned frequencies have moved little if the median |ln(theta/theta0)| is below this.
LITTLE = 0.1

Answer = Mapping[str, Any]

# Below the answers on generated data.
ORDER = 4


def tables(report: Report) -> list[str]:
    """Return the parts of table.md."""
    return [*extension_part(report), *copies_part(report)]


def notes(report: Report) -> list[str]:
    """Return notes on learned numbers."""
    return [*drift_notes(report), *shift_notes(report)]


def files(report: Report) -> dict[str, str]:
    """Return probes.csv and extension.csv, if runs were probed."""
    made = {"probes.csv": probes_csv(report), "extension.csv": extension_csv(report)}
    return {name: text for name, text in made.items() if text}


# -- by place --------------------------------------------------------------------------------------


def probes_csv(report: Report) -> str | None:
    """Return probes.csv: a line for each row, probe and place; None if no run was probed.

    `by_place` explains the columns.
    """
    lines = []
    for probe in BY_PLACE:
        for label, answers in report.answers(probe).items():
            asked = [by_place(probe, answer) for answer in answers]
            # Includes only runs that were probed at the same places, as in the figure.
            of_runs = [each for each in asked if _places(each) == _places(asked[0])]
            for name, places in of_runs[0].items():
                for place in places:
                    told = {"row": label, "probe": name, "at": place}
                    numbers = np.array([of_run[name][place] for of_run in of_runs])
                    lines.append({**told, **_over_runs(numbers)})
    return pd.DataFrame(lines).to_csv(index=False, float_format="%.6f") if lines else None


def _places(of_run: Mapping[str, Mapping[Any, float]]) -> dict[str, list[Any]]:
    return {name: list(numbers) for name, numbers in of_run.items()}


def _over_runs(numbers: Array) -> dict[str, float]:
    """Return the number of runs, their mean, and their standard deviation (NaN for one run)."""
    deviation = numbers.std(ddof=1) if len(numbers) > 1 else np.nan
    return {"num_seeds": len(numbers), "mean": numbers.mean(), "sd": deviation}


# -- longer contexts -------------------------------------------------------------------------------


def extended_losses(report: Report) -> pd.DataFrame:
    """Return the answers to the probe `extension`, a line for each run, method, sites and length.

    Columns are row, method, sites ("" as trained), seeds (of the row), length, factor (the length
    in training lengths) and loss.
    """
    columns = ["row", "method", "sites", "seeds", "length", "factor", "loss"]
    lines = []
    for label, answers in report.answers("extension").items():
        for method, sites in itertools.product(METHOD_NAMES, ("", *PAIR_NAMES)):
            for answer in answers:
                of_sites = {"": answer[method]} if method == "as_trained" else answer[method]
                lengths = answer["lengths"]
                for length, loss in zip(lengths, of_sites.get(sites, ()), strict=False):
                    factor = length // lengths[0]
                    lines.append((label, method, sites, len(answers), length, factor, loss))
    return pd.DataFrame(lines, columns=columns)


def extension_csv(report: Report) -> str | None:
    """Return extension.csv, in nats with six decimals; None if no run was probed."""
    found = extended_losses(report)
    if found.empty:
        return None
    groups = found.groupby(["row", "method", "sites", "length"], sort=False)["loss"]
    over_runs = groups.agg(num_seeds="count", loss_mean="mean", loss_sd="std")
    return over_runs.reset_index().to_csv(index=False, float_format="%.6f")


def extension_part(report: Report) -> list[str]:
    """Return a sentence and a table of means by method and length; empty if no run was probed."""
    found = extended_losses(report)
    if found.empty:
        return []
    told = found.assign(
        row=found["row"].map({label: row.name for label, row in report.rows.items()}),
        frequencies=found["method"].map(METHOD_NAMES),
        sites=found["sites"].map(PAIR_NAMES).fillna(NOTHING),
        times=found["factor"].map("{}×".format),
    )
    by = ["row", "frequencies", "sites", "seeds"]
    table = told.pivot_table("loss", index=by, columns="times", sort=False).reset_index()
    return [
        "Loss by window length, in training lengths; the listed sites rotate at frequencies "
        "adapted to that length (mean over seeds):",
        markdown_table(table, ".4f"),
    ]


# -- copying, and token shift ----------------------------------------------------------------------


def copies(run: Run) -> bool:
    """Return whether a run that was asked for `repeat` copies."""
    return second_gain(run) >= COPIES


def second_gain(run: Run) -> float:
    """Return by how much a text's second reading has a lower loss than the first, in nats."""
    first, second = run.probes["repeat"]["loss"]
    return float(first - second)


def copies_part(report: Report) -> list[str]:
    """Return a sentence and a table of the runs that copy; empty if no run was probed."""
    lines = []
    for row in report.rows.values():
        runs = [run for run in row.runs if "repeat" in run.probes]
        if not runs:
            continue
        copying = np.array([copies(run) for run in runs])
        losses = np.array([run.loss for run in runs], dtype=float)
        line = {
            "row": row.name,
            "runs that copy": f"{copying.sum()} of {len(runs)}",
            "gain by the second reading": np.mean([second_gain(run) for run in runs]),
            "loss of those that copy": losses[copying].mean() if copying.any() else None,
            "of the others": None if copying.all() else losses[~copying].mean(),
        }
        lines.append(line)
    if not lines:
        return []
    return [
        "Runs that copy: reading half a window of held-out text a second time, right after the "
        f"first, lowers the loss by at least {COPIES} nats (means over seeds):",
        markdown_table(pd.DataFrame(lines), ".4f"),
    ]


def shift_notes(report: Report) -> list[str]:
    """Return a note for each row with token shift: the mean of mu by layer, over seeds."""
    said = []
    for label, answers in report.answers("token_shift").items():
        mu_L = np.mean([answer["mean"] for answer in answers], axis=0)
        told = ", ".join(f"{mu:.3f}" for mu in mu_L)
        said.append(f"{report.rows[label].name}: mean μ of token shift by layer is {told}.")
    return said


# -- learned frequencies ---------------------------------------------------------------------------


def drift_notes(report: Report) -> list[str]:
    """Return a note for each row with learned frequencies, on how far they moved."""
    said = []
    for label, answers in report.answers("drift").items():
        parts = []
        for pair, name in PAIR_NAMES.items():
            found = [answer["sites"][pair] for answer in answers if pair in answer["sites"]]
            if found:
                mean = np.mean([site["median"] for site in found])
                parts.append(f"{mean:.3g} for {name} ({_judged(found)})")
        said.append(
            f"{report.rows[label].name}: learned frequencies moved by a median |ln(θ/θ₀)| of "
            f"{' and '.join(parts)}."
        )
    return said


def _judged(found: Sequence[Answer]) -> str:
    """Describe the medians of a pair over runs, and the crossings of 0 if these were counted."""
    medians = [answer["median"] for answer in found]
    num_little = sum(median < LITTLE for median in medians)
    if len(medians) == 1:
        said = f"one seed, {'' if num_little else 'not '}below {LITTLE:g}"
    else:
        where = {0: "no seed", len(medians): "every seed"}.get(num_little, f"{num_little} of them")
        said = (
            f"{min(medians):.3g} to {max(medians):.3g} over {len(medians)} seeds, "
            f"below {LITTLE:g} in {where}"
        )

    counts = [answer["crossings"] for answer in found if "crossings" in answer]
    if not counts:
        return said
    total = sum(counts)
    return f"{said}; 0 was " + (f"crossed {total:,} times" if total else "never crossed")
