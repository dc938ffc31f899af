"""Tables and notes of probes: results by place, longer contexts, copying, learned numbers."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from rope_exp.evidence.places import BY_PLACE, by_place
from rope_exp.evidence.runs import Run
from rope_exp.report.content import Report
from rope_exp.report.spelling import markdown_table

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


def _over_runs(numbers: NDArray[np.float64], prefix: str = "") -> dict[str, float]:
    """Return the number of runs, their mean, and their standard deviation (NaN for one run)."""
    deviation = numbers.std(ddof=1) if len(numbers) > 1 else np.nan
    return {"num_seeds": len(numbers), f"{prefix}mean": numbers.mean(), f"{prefix}sd": deviation}


# -- longer contexts -------------------------------------------------------------------------------


def extended_losses(
    answers: Sequence[Answer],
) -> dict[tuple[str, str], NDArray[np.float64]]:
    """Return a row's losses [runs, lengths] by method and sites; "as_trained" has sites "".

    Args:
        answers: its runs' answers to the probe `extension`.
    """
    found = {}
    for method in METHOD_NAMES:
        of_sites = [answer[method] for answer in answers]
        if method == "as_trained":
            of_sites = [{"": losses} for losses in of_sites]
        for sites in ("", *PAIR_NAMES):
            if sites in of_sites[0]:
                losses = [of_run[sites] for of_run in of_sites]
                found[method, sites] = np.array(losses, dtype=float)
    return found


def extension_csv(report: Report) -> str | None:
    """Return extension.csv, in nats with six decimals; None if no run was probed."""
    lines = []
    for label, answers in report.answers("extension").items():
        for (method, sites), losses in extended_losses(answers).items():
            for length, of_runs in zip(answers[0]["lengths"], losses.T, strict=True):
                told = {"row": label, "method": method, "sites": sites, "length": length}
                lines.append({**told, **_over_runs(of_runs, "loss_")})
    return pd.DataFrame(lines).to_csv(index=False, float_format="%.6f") if lines else None


def extension_part(report: Report) -> list[str]:
    """Return a sentence and a table of means by method and length; empty if no run was probed."""
    lines = []
    for label, answers in report.answers("extension").items():
        lengths = answers[0]["lengths"]
        for (method, sites), losses in extended_losses(answers).items():
            line = {
                "row": report.rows[label].name,
                "frequencies": METHOD_NAMES[method],
                "sites": PAIR_NAMES.get(sites),
                "seeds": len(answers),
            }
            for length, mean in zip(lengths, losses.mean(axis=0), strict=True):
                line[f"{length // lengths[0]}×"] = mean
            lines.append(line)
    if not lines:
        return []
    return [
        "Loss by window length, in training lengths; the listed sites rotate at frequencies "
        "adapted to that length (mean over seeds):",
        markdown_table(pd.DataFrame(lines), ".4f"),
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
