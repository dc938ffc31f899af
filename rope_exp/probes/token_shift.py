"""The share mu of the previous token in keys and values, layer by layer."""

from typing import Annotated, Any

import numpy as np
import torch
from typing_extensions import TypedDict

from rope_exp.config import RunConfig
from rope_exp.probes._answer import Numbers, of_one_length
from rope_exp.probes._windows import Finished, attentions, significant
from rope_exp.report import Part, Report


class Answer(TypedDict):
    """The content of an answer."""

    # By layer.
    mean: Numbers
    sd: Numbers
    min: Numbers
    max: Numbers


ANSWER = Annotated[Answer, of_one_length("mean", "sd", "min", "max")]


def why_not(config: RunConfig) -> str:
    """Return why a run's model cannot be asked, or ""."""
    if not config.model.token_shift:
        return "token_shift needs mu, which is learned: model.token_shift"
    return ""


def ask(trainer: Finished) -> dict[str, Any]:
    """Return the mean, standard deviation, minimum and maximum of mu, by layer."""
    layers: list[Any] = [*attentions(trainer.decoder)]
    mu_LD = torch.stack([layer.token_shift for layer in layers]).double().cpu()
    return {
        "mean": significant(mu_LD.mean(dim=1)),
        "sd": significant(mu_LD.std(dim=1, correction=0)),
        "min": significant(mu_LD.amin(dim=1)),
        "max": significant(mu_LD.amax(dim=1)),
    }


def notes(report: Report) -> list[str]:
    """Return a note for each row with token shift: the mean of mu by layer, over seeds."""
    sentences = []
    for label, answers in report.answers("token_shift").items():
        # A number that was not finite is null.
        mu_L = np.mean(np.array([answer["mean"] for answer in answers], dtype=float), axis=0)
        numbers = ", ".join(f"{mu:.3f}" for mu in mu_L)
        sentences.append(f"{report.rows[label].name}: mean μ of token shift by layer is {numbers}.")
    return sentences


REPORT = Part(order=5, notes=notes)
