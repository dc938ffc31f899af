"""The explained variance of real numbers on the held-out rows.

R^2 = 1 - sum of squared errors / sum of squared deviations from their mean, over all queries of all
rows. Shapes: N rows, Q queries, D dimensions.
"""

from typing import Any

import numpy as np
import pandas as pd
import torch
from typing_extensions import TypedDict

from rope_exp.batches import held_out_rows
from rope_exp.config import RunConfig
from rope_exp.probes._answer import Number, Numbers
from rope_exp.probes._windows import Finished, batches, rounded
from rope_exp.report import Part, Report
from rope_exp.tables import Column, Table


class Answer(TypedDict):
    """The content of an answer."""

    r2: Number
    r2_of_dims: Numbers
    error_of_queries: Numbers


ANSWER = Answer


def why_not(config: RunConfig) -> str:
    """Return why a run's model cannot be asked, or ""."""
    if config.task is None:
        return "fit is asked of generated data, such as data=spikes"
    return ""


def ask(trainer: Finished) -> dict[str, Any]:
    """Return R^2 and the mean squared error on the held-out rows."""
    batch = held_out_rows(trainer.config, trainer.data)
    parts = [
        trainer.decoder(inputs.ids_BT, **inputs.model_kwargs).double().cpu()
        for inputs in batches(trainer, batch, trainer.rows_at_once)
    ]
    truth_NQD = batch.target_BP.astype(np.float64)
    error_NQD = (torch.cat(parts).numpy() - truth_NQD) ** 2
    spread_D = ((truth_NQD - truth_NQD.mean(axis=(0, 1))) ** 2).sum(axis=(0, 1))
    r2_D = 1 - error_NQD.sum(axis=(0, 1)) / spread_D
    return {
        "r2": rounded([r2_D.mean()])[0],
        "r2_of_dims": rounded(r2_D),
        "error_of_queries": rounded(error_NQD.mean(axis=(0, 2))),
    }


def tables(report: Report) -> list[str]:
    """Return R² of each row with any: the mean over seeds, and the extremes."""
    answers = report.answers("fit")
    by_row = {}
    for label, of_row in answers.items():
        by_row[label] = [answer["r2"] for answer in of_row]
    r2 = pd.Series(by_row).explode()
    if r2.empty:
        return []
    frame = r2.astype(float).groupby(level=0, sort=False).agg(["size", "mean", "min", "max"])
    frame["name"] = [report.rows[label].name for label in answers]
    columns = [
        Column("variant", "name"),
        Column("seeds", "size", "d"),
        Column("R²", "mean", ".4f"),
        Column("lowest", "min", ".4f"),
        Column("highest", "max", ".4f"),
    ]
    return ["Explained variance (R²) on the held-out rows:", Table(columns, frame).markdown()]


REPORT = Part(order=3, tables=tables)
