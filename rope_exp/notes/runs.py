"""Notes on runs: marks, lost runs, unequal seeds, differing environments, and folders left out."""

from collections.abc import Iterable

from rope_exp.comparable import differing_environment
from rope_exp.folder import Run
from rope_exp.report import Part, Report
from rope_exp.tables import span


def notes(report: Report) -> list[str]:
    """Describe what is unusual about runs."""
    sentences = []
    for row in report.rows.values():
        for run in row.runs:
            sentences += _run_notes(row.name, run)

    # Means over other seeds than the table's are not comparable; Δ and ranks are.
    by_seeds: dict[str, list[str]] = {}
    for row in report.rows.values():
        of_mean = spell_seeds(row.losses)
        of_delta = spell_seeds(row.losses.keys() & report.reference.losses.keys())
        seeds = f"mean over {of_mean}, Δ over {of_delta}"
        if of_mean == of_delta:
            seeds = f"mean and Δ over {of_mean}"
        if row.label in report.uneven:
            by_seeds.setdefault(seeds, []).append(row.name)
    sentences += [f"‡ {', '.join(names)}: {seeds}." for seeds, names in by_seeds.items()]
    if by_seeds and any(line["rank"] for line in report.lines.values()):
        sentences.append(
            "Ranks use means adjusted for missing seeds, from a least-squares fit of "
            "loss = seed + row."
        )

    mixed = set()
    for seed in sorted({run.config.seed for run in report.runs}):
        block = [run for run in report.runs if run.config.seed == seed]
        for key, values in differing_environment(block).items():
            sentences.append(f"Runs of seed {seed} differ in {key}: {', '.join(values)}.")
            mixed.add(key)
    for key, values in differing_environment(report.runs).items():
        if key not in mixed:
            sentences.append(f"Seeds differ in {key}: {', '.join(values)}.")
    left_out = [f"{folder} was left out: {reason}." for folder, reason in report.left_out.items()]
    return sentences + left_out


def _run_notes(row_name: str, run: Run) -> list[str]:
    """Describe what is unusual about one run."""
    name = f"{row_name}, seed {run.config.seed}"
    sentences = [f"{name}: {mark} ({run.where})." for mark in run.env.get("marks", [])]
    # This version measures them before every run, and so did all that wrote our records.
    if run.env and not run.env.get("certificate"):
        sentences.append(f"{name}: its laws were not measured before it ({run.where}).")
    if run.status != "finished":
        last_step = run.metrics[-1]["step"] if run.metrics else 0
        steps = run.result.get("steps", last_step)
        of_steps = f"{steps} of {run.config.train.num_steps} steps"
        sentences.append(f"{name}: {run.status} after {of_steps} ({run.where}).")
    return sentences


def spell_seeds(seeds: Iterable[int]) -> str:
    """Return seeds as text: `seeds 0 to 4`, `seed 3`."""
    numbers = sorted(set(seeds))
    if len(numbers) < 2:
        return f"seed {numbers[0]}" if numbers else "no seed"
    is_range = len(numbers) > 2 and numbers[-1] - numbers[0] == len(numbers) - 1
    return f"seeds {span(numbers) if is_range else ', '.join(map(str, numbers))}"


# After the notes of probes.
REPORT = Part(order=100, notes=notes, terminal=notes)
