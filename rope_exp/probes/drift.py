"""Drift of learned frequencies from their initial values.

Shapes: F frequencies; N rows of them: one per model, per layer, or per layer and head.
"""

from typing import Annotated, Any, Literal, NotRequired

import numpy as np
import torch
from typing_extensions import TypedDict

from rope_exp.config import RunConfig
from rope_exp.probes._answer import Number, Numbers, of_one_length
from rope_exp.probes._windows import Finished, rounded, significant
from rope_exp.report import Part, Report
from rope_exp.sections import Natural

PAIRS = {"qk": "q and k", "vo": "v and o"}
LITTLE = 0.1  # frequencies have moved little if the median |ln(theta/theta0)| is below this


class Learned(TypedDict):
    """The frequencies of a pair of sites; `theta` has a row per model, layer, or layer's head."""

    theta0: Numbers
    theta: list[Numbers]
    median: Number
    crossings: NotRequired[Natural]


class Answer(TypedDict):
    """The content of an answer."""

    sites: dict[Literal["qk", "vo"], Annotated[Learned, of_one_length("theta0", "theta")]]


ANSWER = Answer


def why_not(config: RunConfig) -> str:
    """Return why a run's model cannot be asked, or ""."""
    if not config.pe.trainable:
        return "drift needs frequencies that are learned: pe.trainable"
    return ""


def ask(trainer: Finished) -> dict[str, Any]:
    """Return how far the frequencies of each pair of sites moved, if the pair learns.

    An answer has the pair's initial `theta0`, the `theta` of its layers, the median of
    |ln(theta/theta0)|, and the `crossings` of 0, if they were counted.
    """
    pe = trainer.decoder.architecture.pe
    rotary: Any = trainer.decoder.model.rotary_emb
    sites = {}
    for pair in pe.learned:
        theta0_F = rotary.get_buffer(f"theta0_{pair}").double().cpu()
        theta = rotary.theta(pair).double().cpu()
        if theta.ndim > 1:
            # The frequencies of layers in which the pair does not rotate learn nothing.
            theta = theta[[bool({*pair} & {*pe.sites_of(layer)}) for layer in range(len(theta))]]
        theta_NF = theta.reshape(-1, len(theta0_F))
        moved_NF = (theta_NF / theta0_F).log().abs()

        answer: dict[str, Any] = {
            "theta0": significant(theta0_F),
            "theta": [significant(theta_F) for theta_F in theta_NF],
            "median": rounded(torch.quantile(moved_NF, 0.5)[None])[0],
        }
        if pair in rotary.crossings:
            answer["crossings"] = int(rotary.crossings[pair].sum())
        sites[pair] = answer
    return {"sites": sites}


def notes(report: Report) -> list[str]:
    """Return a note for each row with learned frequencies, on how far they moved."""
    sentences = []
    for label, answers in report.answers("drift").items():
        parts = []
        for pair in answers[0]["sites"]:
            learned = [answer["sites"][pair] for answer in answers if pair in answer["sites"]]
            # A number that was not finite is null.
            medians = np.array([site["median"] for site in learned], dtype=float)
            num_little = int(np.sum(medians < LITTLE))
            spread = f"one seed, {'' if num_little else 'not '}below {LITTLE:g}"
            if len(medians) > 1:
                some = f"{num_little} of them"
                where = {0: "no seed", len(medians): "every seed"}.get(num_little, some)
                spread = (
                    f"{min(medians):.3g} to {max(medians):.3g} over {len(medians)} seeds, "
                    f"below {LITTLE:g} in {where}"
                )
            counts = [site["crossings"] for site in learned if "crossings" in site]
            if counts:
                total = sum(counts)
                crossed = f"crossed {total:,} times" if total else "never crossed"
                spread += f"; 0 was {crossed}"
            parts.append(f"{np.mean(medians):.3g} for {PAIRS[pair]} ({spread})")
        sentences.append(
            f"{report.rows[label].name}: learned frequencies moved by a median |ln(θ/θ₀)| of "
            f"{' and '.join(parts)}."
        )
    return sentences


REPORT = Part(order=4, notes=notes)
