"""Frequencies for contexts longer than a trained model's: interpolation, NTK-aware, YaRN.

Each method slows a trained model's feature pairs down: slow pairs by the factor s by which the
context grows, fast pairs perhaps by less. R_i^T R_j is R_{j-i} only if both have the same
frequencies, so q and k are extended together, and so are v and o.

Shapes: F frequencies, of n = 2F rotating features; [..., F] if layers or heads have their own.
"""

import itertools
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any
from unittest.mock import patch

import pandas as pd
import torch
from torch import Tensor
from typing_extensions import TypedDict

from rope_exp.attention import Attention
from rope_exp.config import RunConfig
from rope_exp.decoder import Decoder
from rope_exp.probes._answer import Numbers, of_one_length
from rope_exp.probes._windows import (
    Finished,
    length_multiples,
    nats,
    replaced,
    rounded,
    windows,
)
from rope_exp.report import Part, Report
from rope_exp.sections import PAIRS, Count
from rope_exp.tables import NOTHING, markdown_table

METHODS = {"interpolation": "interpolation", "ntk_aware": "NTK-aware", "yarn": "YaRN"}
SITES = {"": NOTHING, "qk": "q and k", "vo": "v and o", "qkvo": "q, k, v and o"}


class Answer(TypedDict):
    """The content of an answer."""

    num_windows: Count
    lengths: list[Count]
    as_trained: Numbers
    # By the sites that are extended.
    interpolation: dict[str, Numbers]
    ntk_aware: dict[str, Numbers]
    yarn: dict[str, Numbers]


ANSWER = Annotated[Answer, of_one_length("lengths", "as_trained", *METHODS)]


def why_not(config: RunConfig) -> str:
    """Return why a run's model cannot be asked, or ""."""
    pe = config.pe
    rotary_dim = config.attn.rotary_dim(config.model)
    num_features = [pe.num_features(rotary_dim, pair) for pair in PAIRS if {*pair} & {*pe.rotate}]
    if not pe.rotate:
        return "extension needs at least one site in pe.rotate"
    if pe.input == "learned":
        return "extension needs positions past the trained length, which pe.input=learned has not"
    if min(num_features) < 4:
        return "extension needs two pairs of features that rotate, a first and a last"
    if config.train.seq_len <= math.tau:
        return "extension needs train.seq_len of at least 7, in which a pair can turn once"
    return ""


def ask(trainer: Finished) -> dict[str, Any]:
    """Return the loss by length, as trained and with frequencies for that length.

    At the trained length nothing is extended, so all methods have the trained decoder's loss.
    """
    trained = trainer.config.train.seq_len
    times = length_multiples(trainer)
    windows_NS = windows(trainer, times[-1] * trained)

    def loss(factor: int) -> Tensor:
        return nats(trainer, windows_NS[:, : factor * trained + 1]).mean()

    # Each pair that rotates, then both.
    rotate = trainer.decoder.architecture.pe.rotate
    rotating = [pair for pair in PAIRS if {*pair} & {*rotate}]
    as_trained = [loss(factor) for factor in times]
    answer: dict[str, Any] = {
        "num_windows": len(windows_NS),
        "lengths": [factor * trained for factor in times],
        "as_trained": rounded(as_trained),
    }
    for method in METHODS:
        answer[method] = {}
        for sites in dict.fromkeys([*rotating, "".join(rotating)]):
            losses = as_trained[:1]
            for factor in times[1:]:
                with extended(trainer.decoder, method, sites, factor, trained):
                    losses.append(loss(factor))
            answer[method][sites] = rounded(losses)
    return answer


def ntk_aware(theta_F: Tensor, factor: float) -> Tensor:
    """Return theta_f s^(-2f/(n - 2)), as from the base times s^(n/(n-2)) (bloc97 2023).

    The first pair rotates as in training, and the last as if interpolated.
    """
    index_F = torch.arange(theta_F.shape[-1], dtype=theta_F.dtype, device=theta_F.device)
    return theta_F * factor ** (-index_F / (len(index_F) - 1))


def yarn(theta_F: Tensor, factor: float, trained_length: int, base: float) -> Tensor:
    """Return YaRN's frequencies: interpolated in parts (Peng et al. 2023, "NTK-by-parts").

    Pairs that turn 32 times or more within the trained length stay, those that turn once or less
    are interpolated, and those between mix linearly in the pair's index f, as in the authors'
    code and transformers (the article prints another mixture). The limits are rounded outwards to
    whole pairs and clipped to 0 and n - 1. transformers' own function starts from a base, and so
    cannot slow frequencies that were trained or differ by layer.
    """
    index_F = torch.arange(theta_F.shape[-1], dtype=theta_F.dtype, device=theta_F.device)

    def place(turns: int) -> float:
        # f, possibly fractional, at which L theta_f = 2 pi turns.
        return len(index_F) * math.log(trained_length / (math.tau * turns)) / math.log(base)

    # 32 and 1 turns are beta and alpha of Peng et al.
    first = max(math.floor(place(32)), 0)
    last = min(math.ceil(place(1)), 2 * len(index_F) - 1)
    # If even the last pair turns often, first lies past it, and no pair is slowed.
    share_F = ((index_F - first) / max(last - first, 1)).clamp(0, 1)
    return theta_F * (1 - share_F + share_F / factor)


@contextmanager
def extended(
    decoder: Decoder, method: str, sites: str, factor: float, trained_length: int
) -> Iterator[None]:
    """Rotate sites (qk, vo or qkvo) by a method's frequencies for `factor` trained lengths.

    Interpolation divides every position by s (Chen et al. 2023): within s trained lengths no angle
    is larger than in training. YaRN also multiplies q and k by 0.1 ln(s) + 1, if these are
    extended, which sharpens the softmax of a longer context. In the rotation's tables, this would
    also scale v and o, and miss the features that do not rotate. Kinds without a softmax have no
    such scale.
    """
    rotary = decoder.model.rotary_emb
    usual = rotary.theta

    def theta(pair: str) -> Tensor:
        trained = usual(pair)
        if pair not in sites:
            return trained
        if method == "interpolation":
            return trained / factor
        if method == "ntk_aware":
            return ntk_aware(trained, factor)
        return yarn(trained, factor, trained_length, decoder.architecture.pe.base_of(pair))

    def sharper(layer: Attention) -> Callable[..., Tensor]:
        attend = layer.attend
        # Squared, because it multiplies both q and k. A bias does not change.
        scale = (0.1 * math.log(factor) + 1) ** 2 if method == "yarn" and "qk" in sites else 1
        return lambda q_BTHK, *others: attend(q_BTHK * scale, *others)

    with patch.object(rotary, "theta", theta), replaced(decoder, "attend", sharper):
        yield


def tables(report: Report) -> list[str]:
    """Return a table of means by method and length."""
    losses = _losses(report)
    if losses.empty:
        return []
    losses["row"] = [report.rows[label].name for label in losses["row"]]
    losses["frequencies"] = losses["method"].map({"as_trained": "as trained", **METHODS})
    losses["sites"] = losses["sites"].map(SITES)
    by = ["row", "frequencies", "sites", "seeds"]
    table = losses.pivot_table("loss", index=by, columns="times", sort=False).reset_index()
    return [
        "Loss by window length, in training lengths; the listed sites rotate at frequencies "
        "adapted to that length (mean over seeds):",
        markdown_table(table, ".4f"),
    ]


def files(report: Report) -> dict[str, str]:
    """Return extension.csv, in nats with six decimals."""
    losses = _losses(report)
    if losses.empty:
        return {}
    groups = losses.groupby(["row", "method", "sites", "length"], sort=False)["loss"]
    over_runs = groups.agg(num_seeds="count", loss_mean="mean", loss_sd="std")
    return {"extension.csv": over_runs.to_csv(float_format="%.6f")}


def _losses(report: Report) -> pd.DataFrame:
    """Return a line for each row, method, sites ("" as trained), run and length."""
    lines = []
    for label, answers in report.answers("extension").items():
        for method, sites in itertools.product(["as_trained", *METHODS], SITES):
            for answer in answers:
                by_sites = answer[method]
                if method == "as_trained":
                    by_sites = {"": answer[method]}
                for length, loss in zip(answer["lengths"], by_sites.get(sites, ()), strict=False):
                    line = {"row": label, "seeds": len(answers), "method": method, "sites": sites}
                    times = f"{length // answer['lengths'][0]}×"
                    lines.append({**line, "length": length, "times": times, "loss": loss})
    return pd.DataFrame(lines)


REPORT = Part(order=4, tables=tables, files=files)
