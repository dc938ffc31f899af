"""Notes on runs: marks, lost runs, unequal seeds, differing surroundings, and folders left out."""

from rope_exp.comparable import differing_surroundings, mixed_blocks
from rope_exp.report import Report, has_other_seeds
from rope_exp.runs import Run
from rope_exp.words._seeds import spell_seeds

# After the notes of probes.
ORDER = 100


def notes(report: Report) -> list[str]:
    """Describe what is unusual about runs."""
    said = []
    for row in report.rows.values():
        for run in row.runs:
            said += _run_notes(row.name, run)
    said += _seed_notes(report)

    mixed = mixed_blocks(report.runs)
    for seed, differing in mixed.items():
        for key, values in differing.items():
            said.append(f"Runs of seed {seed} differ in {key}: {', '.join(values)}.")
    for key, values in differing_surroundings(report.runs).items():
        if not any(key in differing for differing in mixed.values()):
            said.append(f"Seeds differ in {key}: {', '.join(values)}.")
    said += [f"{folder} was left out: {reason}." for folder, reason in report.left_out.items()]
    return said


# The same on a terminal.
terminal = notes


def _run_notes(row: str, run: Run) -> list[str]:
    name = f"{row}, seed {run.config.seed}"
    said = [f"{name}: {mark} ({run.where})." for mark in run.env.get("marks", [])]
    if run.status != "finished":
        last = [{"step": 0}, *run.metrics][-1]
        steps = run.result.get("steps", last["step"])
        num_steps = run.config.train.num_steps
        said.append(f"{name}: {run.status} after {steps} of {num_steps} steps ({run.where}).")
    return said


def _seed_notes(report: Report) -> list[str]:
    """Name rows with other seeds than the rest: means are not comparable then; Δ and ranks are."""
    by_seeds: dict[str, list[str]] = {}
    for row in report.rows.values():
        if has_other_seeds(report, row):
            mine = spell_seeds(row.losses)
            shared = spell_seeds(row.losses.keys() & report.reference.losses.keys())
            words = f"mean and Δ over {mine}"
            if mine != shared:
                words = f"mean over {mine}, Δ over {shared}"
            by_seeds.setdefault(words, []).append(row.name)

    said = [f"‡ {', '.join(names)}: {words}." for words, names in by_seeds.items()]
    if said and any(line["rank"] for line in report.lines.values()):
        said.append(
            "Ranks use means adjusted for missing seeds, from a least-squares fit of "
            "loss = seed + row."
        )
    return said
