"""Probes of a finished model beyond its held-out loss, without training, in about a minute.

Each probe shows something that the mean over the held-out windows does not:

- windows: the loss of every held-out window, to estimate the windows' share of the noise in a
  difference (a paired bootstrap over windows);
- positions: the loss by position, up to eight times the training length;
- shift: the held-out loss with all positions raised by `start`, including those that begin again at
  documents. A relative variant's loss does not change; an absolute one's rises if it has learned to
  use absolute positions;
- ablation: the loss without one site's rotation, which shows how far the model depends on it;
- repeat: the loss of a text, and of the same text read again right after it, which is low if the
  model copies;
- floors: how often eps replaces linear attention's denominator, because the sum there is smaller;
- distance: mean attention weights at each distance, beside the bound of the scores, and each
  head's score by distance alone;
- drift: learned frequencies, and their distance from their initial values;
- token_shift: the share of the previous token in keys and values, layer by layer;
- extension: the loss by length, with pairs of sites rotating by frequencies for that length.

Losses are mean nats per predicted token, in the run's training precision; null if not finite. Under
train.objective=mlm the windows have the masks of every evaluation, and a bin of positions without
hidden tokens is null.

Shapes: N windows, B of a micro-batch, S = T + 1 tokens, T positions, P predicted places, D model
width, C tokens of a chunk.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from rope_exp.attention import SoftmaxAttention
from rope_exp.batches import Batch, Ids, IdSource, next_tokens, validation_ids
from rope_exp.decoder import Decoder, at_places, chunks
from rope_exp.evaluate import Inputs, Probes, on_device, rounded, significant
from rope_exp.kernels import wide
from rope_exp.probes._contexts import attentions, floored, instead, switched_off
from rope_exp.probes.distance import by_distance
from rope_exp.probes.drift import drifted
from rope_exp.probes.extension import by_length
from rope_exp.sections import TrainConfig

LONGEST = 8  # longest window of the loss by position, in training lengths
# Shifts of positions, in training lengths: from within the first window to far outside.
SHIFTS = (0.25, 1, 4, 16)
# Probes other than windows and positions read 1/SHARE of the windows.
SHARE = 4


class _Stopped(Exception):  # noqa: N818
    """The run was asked to stop; the same command starts the probes again."""


class Asking:
    """The probes of one model, each a method of its name that returns plain values.

    Args:
        decoder: trained, on its device.
        should_stop: called before every micro-batch.
    """

    def __init__(self, decoder: Decoder, should_stop: Callable[[], bool]) -> None:
        self.decoder = decoder
        self.should_stop = should_stop

    def ask(self, names: Sequence[str]) -> Probes | None:
        """Return each probe's result by its name; None if asked to stop."""
        # Eager: compiling another graph does not pay off for a few batches.
        with torch.no_grad(), torch.compiler.set_stance("force_eager"), suppress(_Stopped):
            return {name: getattr(self, name)() for name in names}
        return None

    def batches(self, rows: Batch, at_once: int) -> Iterator[Inputs]:
        """Yield the rows on the device, `at_once` at a time."""
        device = self.decoder.lm_head.weight.device
        for start in range(0, len(rows.ids_BT), at_once):
            if self.should_stop():
                raise _Stopped
            yield on_device(rows.rows(slice(start, start + at_once)), device)


class Questions(Asking):
    """The probes of a model of text.

    Args:
        held_out: the validation side's tokens.
        micro_batch_size: the number of windows of the training length at a time.
        read: makes the run's batch of windows of any length, with positions and targets.
        crossings: how often each learned frequency has crossed 0 in training, for each pair of
            sites that is counted.
    """

    def __init__(
        self,
        decoder: Decoder,
        held_out: IdSource,
        train: TrainConfig,
        micro_batch_size: int,
        should_stop: Callable[[], bool] = lambda: False,
        read: Callable[[Ids], Batch] = next_tokens,
        crossings: Mapping[str, Tensor] | None = None,
    ) -> None:
        super().__init__(decoder, should_stop)
        self.held_out = held_out
        self.train = train
        self.tokens_at_once = micro_batch_size * train.seq_len
        self.read = read
        self.crossings = crossings or {}

    def windows(self) -> Probes:
        """Return the loss of each held-out window."""
        rows = self.read(self._windows(self.train.eval_sequences, self.train.seq_len))
        return {"loss": rounded(self._nats(rows).mean(dim=1))}

    def positions(self) -> Probes:
        """Return the loss by position, in bins that grow by half an octave, and by length.

        Here a position is a place in the window, even if positions begin again at documents.
        Windows are as long as the held-out set allows, up to 8 training lengths, or 1 if positions
        are learned; windows do not overlap. The loss at a length is that of the windows' first
        tokens, read alone.
        """
        factors = self._factors()
        lengths = [self.train.seq_len * factor for factor in factors]
        windows_NS = self._long_windows(self.train.eval_sequences, factors)
        rows = self.read(windows_NS)
        nats_NP = self._nats(rows)

        edges = bin_edges(lengths[-1])
        of_bins = [_between(nats_NP, rows, *ends).mean() for ends in itertools.pairwise(edges)]
        if self.train.objective == "causal":
            at_length = [nats_NP[:, :length].mean() for length in lengths]
        else:
            # Tokens attend to later tokens, so a window's beginning must be read alone.
            beginnings = [self.read(windows_NS[:, : length + 1]) for length in lengths]
            at_length = [self._nats(each).mean() for each in beginnings]
        return {
            "num_windows": len(windows_NS),
            "edges": edges,
            "loss": rounded(of_bins),
            "lengths": lengths,
            "loss_at_length": rounded(at_length),
        }

    def shift(self) -> Probes:
        """Return the loss with every position `start` higher than in training."""
        trunk = self.decoder.model
        usual = trunk.start
        starts = [0, *(int(shift * self.train.seq_len) for shift in SHIFTS)]
        if trunk.num_positions is not None:
            # Learned positions end there.
            room = trunk.num_positions - usual - self.train.seq_len
            starts = [start for start in starts if start <= room]

        losses = []
        for start in starts:
            with instead(trunk, "start", usual + start):
                losses.append(self._loss())
        return {"start": starts, "loss": rounded(losses)}

    def ablation(self) -> Probes:
        """Return the loss as trained, and without each site's rotation."""
        # Sites may rotate in different layers.
        sites = sorted({site for layer in attentions(self.decoder) for site in layer.sites})
        losses = {"": self._loss()}
        for site in sites:
            with switched_off(self.decoder, site):
                losses[site] = self._loss()
        return {"without": list(losses), "loss": rounded(list(losses.values()))}

    def repeat(self) -> Probes:
        """Return the loss of half a window, and of the same tokens when they follow again.

        An induction head (Olsson et al. 2022) finds the token's last occurrence and predicts what
        followed it. A model that has none gains little from the second reading.
        """
        half = self.train.seq_len // 2
        text_NS = self._windows(self._share, half)
        nats_NP = self._nats(self.read(np.hstack([text_NS[:, :half], text_NS])))

        # The text's first token is left out: what stands before it differs.
        readings = nats_NP[:, : half - 1], nats_NP[:, half:-1]
        return {"reading": [1, 2], "loss": rounded([nats.mean() for nats in readings])}

    def floors(self) -> Probes:
        """Return the share of denominators that eps floors, by layer, of a kind that has floors.

        The share is over all positions and heads of the windows that shift and ablation read.
        """
        with ExitStack() as stack:
            seen = [stack.enter_context(floored(layer)) for layer in attentions(self.decoder)]
            self._loss()
        shares = [torch.cat(parts).double().mean() for parts in seen]
        return {"share": rounded(shares)}

    def distance(self) -> Probes:
        """Return `by_distance` at distances below half a window, half an octave apart.

        It reads the same windows as shift and ablation.
        """
        length = self.train.seq_len
        rows = self.read(self._windows(self._share, length))
        batches = self.batches(rows, at_once=1)
        return by_distance(self.decoder, batches, bin_edges((length + 1) // 2)[:-1])

    def drift(self) -> Probes:
        """Return learned frequencies beside the initial ones."""
        return drifted(self.decoder, self.crossings)

    def token_shift(self) -> Probes:
        """Return the mean, standard deviation, minimum and maximum of mu, by layer."""
        layers = [each for each in attentions(self.decoder) if isinstance(each, SoftmaxAttention)]
        mu_LD = torch.stack([layer.token_shift for layer in layers]).double().cpu()
        return {
            "mean": significant(mu_LD.mean(dim=1)),
            "sd": significant(mu_LD.std(dim=1, correction=0)),
            "min": significant(mu_LD.amin(dim=1)),
            "max": significant(mu_LD.amax(dim=1)),
        }

    def extension(self) -> Probes:
        """Return the loss by length, as trained and with frequencies for that length.

        It reads a share of the windows that are read by position.
        """
        factors = self._factors()
        trained = self.train.seq_len
        windows_NS = self._long_windows(self._share, factors)

        def loss(factor: int) -> Tensor:
            beginnings_NS = windows_NS[:, : factor * trained + 1]
            return self._nats(self.read(beginnings_NS)).mean()

        losses = by_length(self.decoder, trained, factors, loss)
        return {"num_windows": len(windows_NS), **losses}

    # -- windows and their losses ------------------------------------------------------------------

    @property
    def _share(self) -> int:
        """The number of windows for probes other than windows and positions."""
        return max(1, self.train.eval_sequences // SHARE)

    def _factors(self) -> list[int]:
        """Return the lengths at which windows are evaluated, in training lengths."""
        longest = LONGEST
        while longest > 1 and longest * self.train.seq_len >= len(self.held_out):
            longest //= 2
        if self.decoder.model.num_positions is not None:
            longest = 1
        return [2**power for power in range(longest.bit_length())]

    def _long_windows(self, count: int, factors: Sequence[int]) -> Ids:
        """Return windows of the longest length, with the tokens of `count` training lengths."""
        return self._windows(max(1, count // factors[-1]), factors[-1] * self.train.seq_len)

    def _windows(self, count: int, length: int) -> Ids:
        """Return `count` fixed held-out windows, or fewer if the held-out set is smaller."""
        return validation_ids(self.held_out, count, length)

    def _loss(self) -> Tensor:
        return self._nats(self.read(self._windows(self._share, self.train.seq_len))).mean()

    def _nats(self, rows: Batch) -> Tensor:
        """Return nats_NP: -log p of each target token."""
        at_once = max(1, self.tokens_at_once // rows.ids_BT.shape[1])
        batches = self.batches(rows, at_once)
        return torch.cat([token_nats(self.decoder, inputs).double().cpu() for inputs in batches])


def token_nats(decoder: Decoder, inputs: Inputs) -> Tensor:
    """Return -log p of each target, in nats and float32, of shape [B, P]."""
    x_ND = at_places(inputs.features(decoder), inputs.place_BP).flatten(0, 1)
    target_N = inputs.target_BP.flatten()

    # In chunks, because the logits of a whole batch would be its largest tensor by far.
    nats = [
        F.cross_entropy(wide(decoder.lm_head(x_CD)), target_C, reduction="none")
        for x_CD, target_C in zip(*chunks(x_ND, target_N), strict=True)
    ]
    return torch.cat(nats).view(inputs.target_BP.shape)


def _between(nats_NP: Tensor, rows: Batch, first: int, last: int) -> Tensor:
    """Return the nats of the targets at places from `first` up to, but not including, `last`."""
    if rows.place_BP is None:
        return nats_NP[:, first:last]
    place_NP = torch.from_numpy(rows.place_BP)
    return nats_NP[(first <= place_NP) & (place_NP < last)]


def bin_edges(length: int) -> list[int]:
    """Return the first position of each bin and the end: 0, 1, 2, 3, 4, 6, 8, 11, ..., length."""
    edges = {0, length}
    power = 0.0
    while (edge := round(2**power)) < length:
        edges.add(edge)
        power += 0.5
    return sorted(edges)
