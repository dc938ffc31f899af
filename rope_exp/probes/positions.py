"""The loss by position, up to eight times the training length.

Here a position is a place in the window, even if positions begin again at documents. Windows do not
overlap. Under train.objective=mlm, a bin without hidden tokens is null.
"""

import itertools
from typing import Annotated, Any

import torch
from typing_extensions import TypedDict

from rope_exp.batches import read
from rope_exp.identity import must
from rope_exp.probes._answer import Numbers, of_one_length
from rope_exp.probes._places import Places
from rope_exp.probes._windows import (
    Finished,
    always,
    bin_edges,
    length_multiples,
    nats,
    rounded,
    windows,
)
from rope_exp.report import Part
from rope_exp.sections import Count, Natural


class Answer(TypedDict):
    """The content of an answer."""

    num_windows: Count
    edges: list[Natural]
    loss: Numbers
    lengths: list[Count]
    loss_at_length: Numbers


ANSWER = Annotated[
    Answer,
    of_one_length("lengths", "loss_at_length"),
    must("must have a loss between two edges", lambda x: len(x["edges"]) == len(x["loss"]) + 1),
]

why_not = always


def ask(trainer: Finished) -> dict[str, Any]:
    """Return the loss by position, in bins that grow by half an octave, and by length.

    The loss at a length is that of the windows' first tokens, read alone.
    """
    lengths = [trainer.config.train.seq_len * multiple for multiple in length_multiples(trainer)]
    windows_NS = windows(trainer, lengths[-1], fraction_of=1)
    nats_NP = nats(trainer, windows_NS)

    edges = bin_edges(lengths[-1])
    place_NP = read(trainer.config, trainer.data, windows_NS).place_BP
    if place_NP is None:
        losses = [nats_NP[:, first:last].mean() for first, last in itertools.pairwise(edges)]
    else:
        bin_NP = torch.bucketize(torch.from_numpy(place_NP), torch.tensor(edges), right=True)
        losses = [nats_NP[bin_NP == number].mean() for number in range(1, len(edges))]

    at_length = [nats_NP[:, :length].mean() for length in lengths]
    if not trainer.config.causal:
        # Tokens attend to later tokens, so a window's beginning must be read alone.
        at_length = [nats(trainer, windows_NS[:, : length + 1]).mean() for length in lengths]
    return {
        "num_windows": len(windows_NS),
        "edges": edges,
        "loss": rounded(losses),
        "lengths": lengths,
        "loss_at_length": rounded(at_length),
    }


REPORT = Part(
    order=1, places=Places(positions=("lengths", "loss_at_length"), bins=("edges", "loss"))
)
