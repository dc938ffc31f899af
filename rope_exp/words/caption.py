"""The caption of a table: groups, seeds, parameters, corpus and budget."""

from rope_exp.report import Report
from rope_exp.table import span
from rope_exp.words._seeds import spell_seeds


def caption(report: Report) -> list[str]:
    """Describe the runs."""
    rows = f"{len(report.rows)} rows by {', '.join(report.keys)}"
    if report.of_variants:
        rows = "1 variant" if len(report.rows) == 1 else f"{len(report.rows)} variants"
    params = span([run.result["params"] for run in report.runs if run.result], ",")
    tokens = span([run.config.train.num_tokens for run in report.runs], ",")
    epochs = span([run.epochs for run in report.runs if run.epochs], ".3g")
    passes = f", {epochs} epochs" if epochs else ""
    corpora = dict.fromkeys(str(run.config.data.name) for run in report.runs)
    return [
        f"Group {report.groups}: {rows}, {spell_seeds(run.config.seed for run in report.runs)}; "
        f"{params or 'unknown'} parameters; corpus {' or '.join(corpora)}; "
        f"{tokens} tokens per run{passes}. "
        f"Losses are validation losses in {report.unit}; "
        f"Δ is the mean within-seed difference from {report.reference.name}."
    ]
