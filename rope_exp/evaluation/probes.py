"""What a finished model is asked beside its held-out loss: no training, a minute or so.

Each probe tells something that the mean over the held-out windows does not:

- windows: the loss of every held-out window, for the share of noise that the windows have in a
  difference (a paired bootstrap over windows);
- positions: the loss by position, up to eight times the training length;
- shift: the held-out loss where positions begin at `start` instead of 0: a relative variant cannot
  tell, an absolute one can, and pays if it has learned to;
- ablation: the loss where one site's rotation is switched off: what the model has come to need;
- floors: how often linear attention divides by its eps, as the sum below the fraction is less.

Losses are mean nats per token that is predicted, in the precision that the run trained in; null
where one is not finite. Under train.objective=mlm the windows have the masks of every evaluation,
and a bin of positions in which no token is hidden is null.

Shapes: N windows, B of a micro-batch, T positions, P places that are predicted, D model width, C
tokens of a chunk.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from rope_exp.config.costs import TOKENS_OF_A_CHUNK
from rope_exp.config.sections import TrainConfig
from rope_exp.data.batches import Batch, Ids, IdSource, validation_ids
from rope_exp.data.sources import held_out_rows
from rope_exp.evaluation.inputs import Inputs, on_device
from rope_exp.model.attention.base import Attention
from rope_exp.model.attention.kernel import wide
from rope_exp.model.attention.linear import LinearAttention
from rope_exp.model.decoder import Decoder
from rope_exp.model.loss import at_places

LONGEST = 8  # of the windows by position, in training lengths
# Of positions, in training lengths: from within the first window to far outside.
SHIFTS = (0.25, 1, 4, 16)
# Shift and ablation ask several times, of a share of the windows.
SHARE = 4

Probes = dict[str, Any]


class _Stopped(Exception):  # noqa: N818
    """The run was asked to stop; the same command asks anew."""


class Questions:
    """The probes of one model; each method is one, and returns plain values.

    Args:
        decoder: trained, on its device.
        held_out: the validation side's tokens.
        micro_batch_size: how many windows of the training length at a time.
        should_stop: asked before every micro-batch.
    """

    def __init__(
        self,
        decoder: Decoder,
        held_out: IdSource,
        train: TrainConfig,
        micro_batch_size: int,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> None:
        self.decoder = decoder
        self.held_out = held_out
        self.train = train
        self.tokens_at_once = micro_batch_size * train.seq_len
        self.should_stop = should_stop

    def ask(self, names: Sequence[str]) -> Probes | None:
        """Return the answer of each probe by its name; None if asked to stop."""
        # Eager: a few batches do not pay for compiling another graph.
        with torch.no_grad(), torch.compiler.set_stance("force_eager"), suppress(_Stopped):
            return {name: getattr(self, name)() for name in names}
        return None

    def windows(self) -> Probes:
        """Return the loss of each held-out window."""
        rows = self._rows(self._windows(self.train.eval_sequences, self.train.seq_len))
        return {"loss": _rounded(self._nats(rows).mean(dim=1))}

    def positions(self) -> Probes:
        """Return the loss by position, in bins that grow by half an octave, and by length.

        Windows are as long as the held-out set allows, up to 8 training lengths, or 1 where
        positions are learned; no token is read more than once. A window's loss at a length is that
        of its beginning, read alone.
        """
        trained = self.train.seq_len
        longest = LONGEST
        while longest > 1 and longest * trained >= len(self.held_out):
            longest //= 2
        if self.decoder.model.num_positions is not None:
            longest = 1
        lengths = [trained * 2**power for power in range(longest.bit_length())]

        count = max(1, self.train.eval_sequences // longest)
        windows_NS = self._windows(count, lengths[-1])
        rows = self._rows(windows_NS)
        nats_NP = self._nats(rows)

        edges = bin_edges(lengths[-1])
        of_bins = [_between(nats_NP, rows, *ends).mean() for ends in itertools.pairwise(edges)]
        if self.train.objective == "causal":
            at_length = [nats_NP[:, :length].mean() for length in lengths]
        else:
            # A token meets those after it, so that a beginning is not what it is alone.
            beginnings = [self._rows(windows_NS[:, : length + 1]) for length in lengths]
            at_length = [self._nats(each).mean() for each in beginnings]
        return {
            "num_windows": len(windows_NS),
            "edges": edges,
            "loss": _rounded(of_bins),
            "lengths": lengths,
            "loss_at_length": _rounded(at_length),
        }

    def shift(self) -> Probes:
        """Return the loss where every position is `start` higher than in training."""
        trunk = self.decoder.model
        usual = trunk.start
        starts = [0, *(int(shift * self.train.seq_len) for shift in SHIFTS)]
        if trunk.num_positions is not None:
            # What was learned ends there.
            room = trunk.num_positions - usual - self.train.seq_len
            starts = [start for start in starts if start <= room]

        losses = []
        try:
            for start in starts:
                trunk.start = usual + start
                losses.append(self._loss())
        finally:
            trunk.start = usual
        return {"start": starts, "loss": _rounded(losses)}

    def ablation(self) -> Probes:
        """Return the loss as trained, and without each site's rotation."""
        sites = sorted(attentions(self.decoder)[0].sites)
        losses = {"": self._loss()}
        for site in sites:
            with switched_off(self.decoder, site):
                losses[site] = self._loss()
        return {"without": list(losses), "loss": _rounded(list(losses.values()))}

    def floors(self) -> Probes:
        """Return the share of the sums below linear attention's fraction that eps floors, by layer.

        Of all positions and heads of the windows that shift and ablation read.
        """
        with ExitStack() as stack:
            layers = [
                each for each in attentions(self.decoder) if isinstance(each, LinearAttention)
            ]
            seen = [stack.enter_context(floored(layer)) for layer in layers]
            self._loss()
        shares = [torch.cat(parts).double().mean() for parts in seen]
        return {"share": _rounded(shares)}

    def _loss(self) -> Tensor:
        count = max(1, self.train.eval_sequences // SHARE)
        return self._nats(self._rows(self._windows(count, self.train.seq_len))).mean()

    def _windows(self, count: int, length: int) -> Ids:
        """Return fixed held-out windows of a length, of which there may be fewer."""
        return validation_ids(self.held_out, count, length)

    def _rows(self, windows_NS: Ids) -> Batch:
        """Return what is read of windows, and predicted."""
        # Under mlm the mask is the decoder's last id.
        mask_id = self.decoder.architecture.vocab_size - 1
        return held_out_rows(self.train, windows_NS, mask_id)

    def _nats(self, rows: Batch) -> Tensor:
        """Return nats_NP: -log p of each token that is predicted."""
        inputs = on_device(rows, self.decoder.lm_head.weight.device)
        at_once = max(1, self.tokens_at_once // rows.ids_BT.shape[1])

        parts = []
        for part in inputs.split(at_once):
            if self.should_stop():
                raise _Stopped
            parts.append(token_nats(self.decoder, part).double().cpu())
        return torch.cat(parts)


def token_nats(decoder: Decoder, inputs: Inputs) -> Tensor:
    """Return -log p of each target, in nats and float32, of shape [B, P]."""
    x_BTD = decoder.model(
        inputs.ids_BT, positions_BT=inputs.position_BT, document_BT=inputs.document_BT
    )
    x_ND = at_places(x_BTD, inputs.place_BP).flatten(0, 1)
    target_N = inputs.target_BP.flatten()

    # The logits of a whole batch would be its largest tensor by far.
    count = math.ceil(len(x_ND) / TOKENS_OF_A_CHUNK[x_ND.device.type])
    chunks = zip(x_ND.tensor_split(count), target_N.tensor_split(count), strict=True)
    nats = [
        F.cross_entropy(wide(decoder.lm_head(x_CD)), target_C, reduction="none")
        for x_CD, target_C in chunks
    ]
    return torch.cat(nats).view_as(inputs.target_BP)


def _between(nats_NP: Tensor, rows: Batch, first: int, last: int) -> Tensor:
    """Return the nats of what is predicted at positions from `first` up to `last`."""
    if rows.place_BP is None:
        return nats_NP[:, first:last]
    place_NP = torch.from_numpy(rows.place_BP)
    return nats_NP[(first <= place_NP) & (place_NP < last)]


@contextmanager
def switched_off(decoder: Decoder, site: str) -> Iterator[None]:
    """Leave out one site's rotation, in every layer, while the context lasts."""
    usual = [attention.sites for attention in attentions(decoder)]
    try:
        for attention in attentions(decoder):
            attention.sites = attention.sites - {site}
        yield
    finally:
        for attention, sites in zip(attentions(decoder), usual, strict=True):
            attention.sites = sites


@contextmanager
def floored(layer: LinearAttention) -> Iterator[list[Tensor]]:
    """Note of each division in a layer, while the context lasts, whether eps stands below it."""
    seen: list[Tensor] = []
    below = layer.below

    def watched(found: Mapping[str, Tensor]) -> Tensor:
        norm_BTH1 = below(found)
        seen.append((norm_BTH1 < layer.attn.eps).flatten())
        return norm_BTH1

    layer.below = watched  # type: ignore[method-assign]
    try:
        yield seen
    finally:
        del layer.below


def attentions(decoder: Decoder) -> list[Attention]:
    """Return the attention of each layer, first to last."""
    return [module for module in decoder.modules() if isinstance(module, Attention)]


def bin_edges(length: int) -> list[int]:
    """Return the first position of each bin and the end: 0, 1, 2, 3, 4, 6, 8, 11, ..., length."""
    edges = {0, length}
    power = 0.0
    while (edge := round(2**power)) < length:
        edges.add(edge)
        power += 0.5
    return sorted(edges)


def _rounded(losses: Sequence[Tensor] | Tensor) -> list[float | None]:
    """Return losses with the six decimals that they are worth; None for one that is not finite."""
    numbers = [float(loss) for loss in losses]
    return [round(number, 6) if math.isfinite(number) else None for number in numbers]
