"""Windows of the held-out text and a finished model's losses on them, which probes share.

Losses are mean nats per predicted token, in the run's training precision; null if not finite.
Shapes: N windows, S = T + 1 tokens, P predicted places, D model width, C tokens of a chunk.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from rope_exp.attention import Attention, wide
from rope_exp.batches import Batch, Ints, read, validation_ids
from rope_exp.config import RunConfig
from rope_exp.decoder import Decoder, Inputs, at_places, chunks, on_device
from rope_exp.prepare import VALIDATION
from rope_exp.signals import Stopped, StopSignal

LONGEST = 8  # longest windows, in training lengths
# Probes other than windows and positions read 1/SHARE of the windows.
SHARE = 4


class Finished(Protocol):
    """A finished model, which the files of probes/ question: its trainer."""

    decoder: Decoder
    config: RunConfig
    data: Any
    # The rows of the training length in a micro-batch.
    rows_at_once: int
    stop: StopSignal


def batches(model: Finished, rows: Batch, at_once: int) -> Iterator[Inputs]:
    """Yield the rows on the device, `at_once` at a time; raise Stopped if the run is to stop."""
    device = model.decoder.lm_head.weight.device
    for start in range(0, len(rows.ids_BT), at_once):
        if model.stop.requested:
            raise Stopped
        yield on_device(rows.rows(slice(start, start + at_once)), device)


def rounded(losses: Iterable[Any]) -> list[float | None]:
    """Return losses rounded to six decimals; None for one that is not finite."""
    return [round(loss, 6) if math.isfinite(loss) else None for loss in map(float, losses)]


def significant(numbers_N: Tensor) -> list[float | None]:
    """Return numbers with six significant digits; None for one that is not finite."""
    numbers = numbers_N.double().tolist()
    return [float(f"{number:.6g}") if math.isfinite(number) else None for number in numbers]


def windows(model: Finished, count: int, length: int) -> Ints:
    """Return `count` fixed held-out windows, or fewer if the held-out set is smaller."""
    return validation_ids(model.data.tokens[VALIDATION], count, length)


def share(model: Finished) -> int:
    """Return the number of windows for probes other than windows and positions."""
    return max(1, model.config.train.eval_sequences // SHARE)


def factors(model: Finished) -> list[int]:
    """Return the lengths at which windows are evaluated, in training lengths.

    The longest is as long as the held-out set allows, up to 8; or 1 if positions are learned.
    """
    longest = LONGEST if model.decoder.model.num_positions is None else 1
    num_tokens = len(model.data.tokens[VALIDATION])
    while longest > 1 and longest * model.config.train.seq_len >= num_tokens:
        longest //= 2
    return [2**power for power in range(longest.bit_length())]


def long_windows(model: Finished, count: int, factors: Sequence[int]) -> Ints:
    """Return windows of the longest length, with the tokens of `count` training lengths."""
    longest = factors[-1]
    return windows(model, max(1, count // longest), longest * model.config.train.seq_len)


def loss(model: Finished) -> Tensor:
    """Return the loss on the share of the windows."""
    return nats(model, windows(model, share(model), model.config.train.seq_len)).mean()


def nats(model: Finished, windows_NS: Ints) -> Tensor:
    """Return nats_NP: -log p of each target token of windows, in float64."""
    tokens_at_once = model.rows_at_once * model.config.train.seq_len
    rows = read(model.config, model.data, windows_NS)
    at_once = max(1, tokens_at_once // rows.ids_BT.shape[1])
    parts = batches(model, rows, at_once)
    return torch.cat([token_nats(model.decoder, inputs).double().cpu() for inputs in parts])


def features(decoder: Decoder, inputs: Inputs) -> Tensor:
    """Return the last layer's normed output at every place, [B, T, D]."""
    at: Any = {"positions_BT": inputs.position_BT, "document_BT": inputs.document_BT}
    x_BTD: Tensor = decoder.model(inputs.ids_BT, **at)
    return x_BTD


def token_nats(decoder: Decoder, inputs: Inputs) -> Tensor:
    """Return nats_BP: -log p of each target, in float32."""
    x_ND = at_places(features(decoder, inputs), inputs.place_BP).flatten(0, 1)
    # In chunks, because the logits of a whole batch would be its largest tensor by far.
    nats = [
        F.cross_entropy(wide(decoder.lm_head(x_CD)), target_C, reduction="none")
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
