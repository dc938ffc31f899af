"""probes.csv: the answers to probes that have a number for each of several places."""

import pandas as pd

from rope_exp.report import Report, parts


def files(report: Report) -> dict[str, str]:
    """Return probes.csv, if runs were probed: a line for each row, number and place."""
    tables = []
    for probe, places in parts("PLACES", "probes").items():
        for label in report.answers(probe):
            losses = places.by_seed(report.rows[label], probe)
            numbers = {"mean": losses.mean(skipna=False), "sd": losses.std(skipna=False)}
            table = pd.DataFrame(numbers).reset_index()
            table.insert(0, "row", label)
            table.insert(3, "num_seeds", len(losses))
            tables.append(table)
    if not tables:
        return {}
    return {"probes.csv": pd.concat(tables).to_csv(index=False, float_format="%.6f")}
