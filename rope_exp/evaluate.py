"""A model's loss on a batch, by micro-batches on the device, and its answers to probes.

Shapes as in `batches`.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from rope_exp.batches import Batch
from rope_exp.config import RunConfig
from rope_exp.decoder import Decoder
from rope_exp.identity import chosen


class Inputs(NamedTuple):
    """The tensors of a batch, in the form that the decoder takes."""

    ids_BT: Tensor
    target_BP: Tensor
    place_BP: Tensor | None
    position_BT: Tensor | None
    document_BT: Tensor | None

    def split(self, size: int) -> Iterator["Inputs"]:
        """Yield micro-batches of `size` rows; the last may have fewer."""
        for start in range(0, len(self.ids_BT), size):
            part = slice(start, start + size)
            parts: list[Any] = [None if tensor is None else tensor[part] for tensor in self]
            yield Inputs(*parts)

    def features(self, decoder: Decoder) -> Tensor:
        """Return the last layer's normed output at every place, [B, T, D]."""
        found: Tensor = decoder.model(
            self.ids_BT, positions_BT=self.position_BT, document_BT=self.document_BT
        )
        return found

    @property
    def further(self) -> dict[str, Tensor]:
        """The decoder's keyword arguments besides ids and targets."""
        keywords = {
            "predicted_BP": self.place_BP,
            "positions_BT": self.position_BT,
            "document_BT": self.document_BT,
        }
        return {name: tensor for name, tensor in keywords.items() if tensor is not None}

    def nats(self, model: nn.Module) -> Tensor:
        """Return the summed nats over the targets, or the summed squared errors."""
        found: Tensor = model(self.ids_BT, self.target_BP, **self.further)
        return found


def on_device(batch: Batch, device: torch.device) -> Inputs:
    """Copy a batch to a device without waiting for the copy."""

    def copied(array: object) -> Tensor | None:
        if array is None:
            return None
        tensor = torch.as_tensor(array)
        if device.type == "cuda":
            tensor = tensor.pin_memory()
        return tensor.to(device, non_blocking=True)

    # The fields of `Inputs` are fields of a batch.
    return Inputs(*(copied(getattr(batch, name)) for name in Inputs._fields))  # type: ignore[arg-type]


def rounded(losses: Iterable[Any]) -> list[float | None]:
    """Return losses rounded to six useful decimals; None for one that is not finite."""
    numbers = map(float, losses)
    return [round(number, 6) if math.isfinite(number) else None for number in numbers]


def significant(numbers: Tensor) -> list[float | None]:
    """Return a 1-D tensor's numbers with six significant digits; None if not finite."""
    return [
        float(f"{number:.6g}") if math.isfinite(number) else None
        for number in numbers.double().tolist()
    ]


@torch.no_grad()
def held_out_loss(
    model: nn.Module,
    held_out: Batch,
    *,
    micro_batch_size: int,
    device: torch.device,
    rank: int = 0,
    world_size: int = 1,
    should_stop: Callable[[], bool] = lambda: False,
    sum_over_ranks: Callable[[Tensor], Tensor] = lambda total: total,
) -> float | None:
    """Return the mean nats per predicted token, the same on every rank.

    For real numbers, return the mean squared error.

    Args:
        model: `model(ids, targets, ...)` returns summed nats.
        held_out: all rows; the ranks share them.
        micro_batch_size: the number of rows at a time.
        should_stop: called before every micro-batch, and equally often on every rank.
        sum_over_ranks: returns the sum of all ranks' nats, given this rank's.
    Returns:
        The loss; None if `should_stop` returned true.
    """
    mine = on_device(held_out.rows(slice(rank, None, world_size)), device)
    nats = torch.zeros((), dtype=torch.float64, device=device)

    # Every rank loops as often as the one with the largest share: asking whether to stop is a
    # collective call, and all ranks must make it equally often.
    largest_share = math.ceil(len(held_out.ids_BT) / world_size)
    micro_batches = mine.split(micro_batch_size)

    # Eager: compiling a second graph does not pay off for a few batches.
    with torch.compiler.set_stance("force_eager"):
        for _ in range(0, largest_share, micro_batch_size):
            if should_stop():
                return None
            inputs = next(micro_batches, None)
            if inputs is not None:
                nats += inputs.nats(model).double()

    return float(sum_over_ranks(nats)) / held_out.num_targets


class _Stopped(Exception):  # noqa: N818
    """The run was asked to stop; the same command starts the probes again."""


@dataclass(frozen=True)
class Finished:
    """A finished model, which the files of probes/ question.

    Attributes:
        decoder: trained, on its device.
        data: the run's `Prepared` or `Generated` data set.
        rows_at_once: the rows of the training length in a micro-batch.
        should_stop: called before every micro-batch.
        crossings: how often each learned frequency has crossed 0 in training, for each pair of
            sites that is counted.
    """

    decoder: Decoder
    config: RunConfig
    data: Any
    rows_at_once: int
    should_stop: Callable[[], bool] = lambda: False
    crossings: Mapping[str, Tensor] = field(default_factory=dict)

    def ask(self, probes: Sequence[str]) -> dict[str, Any] | None:
        """Return each probe's answer, as plain values, by its name; None if asked to stop."""
        # Eager: compiling another graph does not pay off for a few batches.
        with torch.no_grad(), torch.compiler.set_stance("force_eager"), suppress(_Stopped):
            return {name: chosen("probes", name, "train.probes").ask(self) for name in probes}
        return None

    def batches(self, rows: Batch, at_once: int) -> Iterator[Inputs]:
        """Yield the rows on the device, `at_once` at a time."""
        device = self.decoder.lm_head.weight.device
        for start in range(0, len(rows.ids_BT), at_once):
            if self.should_stop():
                raise _Stopped
            yield on_device(rows.rows(slice(start, start + at_once)), device)
