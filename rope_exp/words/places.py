"""probes.csv: the answers to probes that have a number for each of several places."""

import numpy as np
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
            asked = [by_place(probe, answer) for answer in answers]
            places = [{name: [*numbers] for name, numbers in each.items()} for each in asked]
            # Includes only runs that were probed at the same places, as in the figure.
            of_runs = [each for each, at in zip(asked, places, strict=True) if at == places[0]]
            for name in asked[0]:
                for place in asked[0][name]:
                    numbers = np.array([of_run[name][place] for of_run in of_runs])
                    line = {"row": label, "probe": name, "at": place, "num_seeds": len(numbers)}
                    sd = numbers.std(ddof=1) if len(numbers) > 1 else np.nan
                    lines.append({**line, "mean": numbers.mean(), "sd": sd})
    if not lines:
        return {}
    return {"probes.csv": pd.DataFrame(lines).to_csv(index=False, float_format="%.6f")}
