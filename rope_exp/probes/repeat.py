"""The loss of a text, and of the same text read again right after it.

The second is low if the model copies, as with induction heads (Olsson et al. 2022).
"""

from typing import Annotated, Any

import numpy as np
import pandas as pd
from pydantic import Field
from typing_extensions import TypedDict

from rope_exp.config import RunConfig
from rope_exp.probes._answer import Numbers, of_one_length
from rope_exp.probes._places import Places
from rope_exp.probes._windows import Finished, nats, rounded, windows
from rope_exp.report import Part, Report
from rope_exp.sections import Count
from rope_exp.tables import markdown_table

# A run copies if a text's second reading has a loss lower by so many nats
# (paper/protocol-2.md).
COPIES = 0.3


class Answer(TypedDict):
    """The content of an answer."""

    # The first and the second.
    reading: Annotated[list[Count], Field(min_length=2, max_length=2)]
    loss: Numbers


ANSWER = Annotated[Answer, of_one_length("reading", "loss")]


def why_not(config: RunConfig) -> str:
    """Return why a run's model cannot be asked, or ""."""
    if not config.causal or config.train.seq_len < 4:
        return "repeat needs train.objective=causal and train.seq_len of at least 4"
    if config.data.document_mask:
        return "repeat would read across documents; no data.document_mask"
    return ""


def ask(trainer: Finished) -> dict[str, Any]:
    """Return the loss of half a window, and of the same tokens when they follow again."""
    half = trainer.config.train.seq_len // 2
    text_NS = windows(trainer, half)
    nats_NP = nats(trainer, np.hstack([text_NS[:, :half], text_NS]))

    # The text's first token is left out, because the two readings have another token before it.
    readings = nats_NP[:, : half - 1], nats_NP[:, half:-1]
    return {"reading": [1, 2], "loss": rounded(reading.mean() for reading in readings)}


def tables(report: Report) -> list[str]:
    """Return a table of the runs that copy."""
    lines = []
    for row in report.rows.values():
        runs = [run for run in row.runs if "repeat" in run.probes]
        # By how much the second reading has a lower loss than the first, in nats.
        # A loss that was not finite is null, and then so is the gain.
        readings = np.array([run.probes["repeat"]["loss"] for run in runs], dtype=float)
        gains = pd.Series(-np.diff(readings).reshape(len(runs)))
        losses = pd.Series([run.loss for run in runs], dtype=float)
        line = {
            "row": row.name,
            "runs that copy": f"{sum(gains >= COPIES)} of {len(runs)}",
            "gain by the second reading": gains.mean(),
            "loss of those that copy": losses[gains >= COPIES].mean(),
            "of the others": losses[~(gains >= COPIES)].mean(),
        }
        if runs:
            lines.append(line)
    if not lines:
        return []
    about = (
        "Runs that copy: reading half a window of held-out text a second time, right after the "
        f"first, lowers the loss by at least {COPIES} nats (means over seeds):"
    )
    return [about, markdown_table(pd.DataFrame(lines), ".4f")]


REPORT = Part(order=5, tables=tables, places=Places(repeat=("reading", "loss")))
