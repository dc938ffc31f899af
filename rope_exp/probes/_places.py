"""The numbers in a probe's answer that lie at several places, such as a loss by position."""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from rope_exp.comparable import Row
from rope_exp.folder import Run


class Places(dict[str, tuple[str, str]]):
    """The keys of places and of numbers in a probe's answer, by the name of the numbers."""

    def of_run(self, run: Run, probe: str) -> "pd.Series[float]":
        """Return a run's answer, named by its seed: numbers by their name (`probe`) and `at`."""
        answer = run.probes[probe]
        numbers = {}
        for name, (places, key) in self.items():
            values = answer[key]
            if isinstance(values, Mapping):
                values = np.mean(list(values.values()), axis=0)
            # The last edge begins no bin.
            numbers[name] = pd.Series(values, answer[places][: len(values)], dtype=float)
        return pd.concat(numbers, names=["probe", "at"]).rename(run.config.seed)

    def by_seed(self, row: Row, probe: str) -> pd.DataFrame:
        """Return a row's answers, a line for each seed, with columns as the index of `of_run`.

        Runs with other places than the first's are left out.
        """
        answers = [self.of_run(run, probe) for run in row.runs if probe in run.probes]
        alike = [answer for answer in answers if answer.index.equals(answers[0].index)]
        return pd.DataFrame(alike)
