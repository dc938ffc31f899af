"""probes.csv: the answers to probes that have a number for each of several places."""

import pandas as pd

from rope_exp.frames import by_place, probes_by_place
from rope_exp.report import Report


def files(report: Report) -> dict[str, str]:
    """Return probes.csv, if runs were probed: a line for each row, number and place.

    `by_place` explains the columns.
    """
    lines = []
    for probe in probes_by_place():
        for label, answers in report.answers(probe).items():
            first, *others = (by_place(probe, answer) for answer in answers)
            # Includes only runs that were probed at the same places, as in the figure.
            same = [first, *(each for each in others if each.index.equals(first.index))]
            of_runs = pd.DataFrame(same)
            numbers = {"mean": of_runs.mean(skipna=False), "sd": of_runs.std(skipna=False)}
            of_row = pd.DataFrame(numbers).reset_index()
            of_row.insert(0, "row", label)
            of_row.insert(3, "num_seeds", len(same))
            lines.append(of_row)
    if not lines:
        return {}
    return {"probes.csv": pd.concat(lines).to_csv(index=False, float_format="%.6f")}
