"""Shared by probes: windows of the held-out text, and a finished model's losses.

Losses are mean nats per predicted token, in the run's training precision; null if not finite.
Shapes: N windows, S = T + 1 tokens, P predicted places, D model width, C tokens of a chunk.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Protocol
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor

from rope_exp.attention import Attention, at_least_float32
from rope_exp.batches import read, validation_ids
from rope_exp.config import RunConfig
from rope_exp.corpus import VALIDATION, Batch, Ints
from rope_exp.decoder import Decoder, chunks, gather_places, on_device
from rope_exp.signals import StopRequested, StopSignal


class Finished(Protocol):
    """A finished model, which the files of probes/ question: its trainer."""

    decoder: Decoder
    config: RunConfig
    data: Any
    rows_at_once: int  # of the training length, in a micro-batch
    stop: StopSignal


def always(config: RunConfig) -> str:
    """Return why a config cannot have the probe: nothing."""
    return ""


def batches(trainer: Finished, rows: Batch, at_once: int) -> Iterator[Batch]:
    """Yield micro-batches of some rows, on the model's device.

    Args:
        trainer: the run's, which also knows whether it was asked to stop.
        rows: B rows, as numpy's arrays.
        at_once: the rows of a micro-batch; the last may have fewer.
    Raises:
        StopRequested: the run was asked to stop. The same command starts the probe again.
    """
    device = trainer.decoder.lm_head.weight.device
    for part in rows.split(at_once):
        if trainer.stop.requested:
            raise StopRequested
        yield on_device(part, device)


def rounded(numbers: Iterable[Any], form: str = ".6f") -> list[float | None]:
    """Return plain numbers, rounded as a format rounds them; None for one that is not finite."""
    return [float(format(x, form)) if math.isfinite(x) else None for x in map(float, numbers)]


def significant(numbers: Iterable[Any]) -> list[float | None]:
    """Return numbers with six significant digits; None for one that is not finite."""
    return rounded(numbers, ".6g")


def windows(trainer: Finished, length: int, fraction_of: int = 4) -> Ints:
    """Return windows_NS, held-out windows that are the same for every run of the corpus.

    Args:
        trainer: the trainer of a run on text.
        length: T, the tokens that a window predicts; S = T + 1.
        fraction_of: the divisor: the windows have 1/fraction_of of the tokens of the held-out
            loss, or fewer if the held-out set is smaller.
    """
    train = trainer.config.train
    count = train.eval_sequences // fraction_of // max(1, length // train.seq_len)
    return validation_ids(trainer.data.tokens[VALIDATION], max(1, count), length)


def length_multiples(trainer: Finished) -> list[int]:
    """Return the lengths at which windows are evaluated, as multiples of the training length.

    The longest is as long as the held-out set allows, up to 8; or 1 if positions have a limit.
    """
    times = (1, 2, 4, 8) if trainer.decoder.model.num_positions is None else (1,)
    num_tokens = len(trainer.data.tokens[VALIDATION])
    return [n for n in times if n == 1 or n * trainer.config.train.seq_len < num_tokens]


def loss(trainer: Finished) -> Tensor:
    """Return the loss on a quarter of the held-out tokens, in windows of the training length."""
    return nats(trainer, windows(trainer, trainer.config.train.seq_len)).mean()


def nats(trainer: Finished, windows_NS: Ints) -> Tensor:
    """Return nats_NP: -log p of each target token of windows, in float64."""
    tokens_at_once = trainer.rows_at_once * trainer.config.train.seq_len
    rows = read(trainer.config, trainer.data, windows_NS)
    at_once = max(1, tokens_at_once // rows.ids_BT.shape[1])
    parts = batches(trainer, rows, at_once)
    return torch.cat([token_nats(trainer.decoder, inputs).double().cpu() for inputs in parts])


def token_nats(decoder: Decoder, inputs: Batch) -> Tensor:
    """Return nats_BP: -log p of each target, in float32."""
    x_BTD = decoder.model(
        inputs.ids_BT, position_BT=inputs.position_BT, document_BT=inputs.document_BT
    )
    x_ND = gather_places(x_BTD, inputs.place_BP).flatten(0, 1)
    # In chunks, because the logits of a whole batch would be its largest tensor by far.
    nats = [
        F.cross_entropy(at_least_float32(decoder.lm_head(x_CD)), target_C, reduction="none")
        for x_CD, target_C in zip(*chunks(x_ND, inputs.target_BP.flatten()), strict=True)
    ]
    return torch.cat(nats).view(inputs.target_BP.shape)


def bin_edges(length: int) -> list[int]:
    """Return the first position of each bin and the end: 0, 1, 2, 3, 4, 6, 8, 11, ..., length."""
    edges = {0, length} | {round(2 ** (number / 2)) for number in range(2 * length.bit_length())}
    return sorted(edge for edge in edges if edge <= length)


def attentions(decoder: Decoder) -> list[Attention]:
    """Return the attention module of each layer, first to last."""
    return [module for module in decoder.modules() if isinstance(module, Attention)]


@contextmanager
def replaced(decoder: Decoder, name: str, change: Callable[[Any], Any]) -> Iterator[None]:
    """Replace an attribute of each attention layer, while the context lasts.

    Args:
        decoder: its layers get their attribute back afterwards, also after an error.
        name: of the attribute, such as "sites" or the method "attend".
        change: returns the replacement, from the layer as it is.
    Returns:
        A context, without a value.
    """
    with ExitStack() as stack:
        for layer in attentions(decoder):
            stack.enter_context(patch.object(layer, name, change(layer)))
        yield
