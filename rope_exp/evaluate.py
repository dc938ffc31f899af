"""A model's loss on a batch, by micro-batches on the device, and its answers to probes."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
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
        model: Callable[..., Tensor] = decoder.model
        return model(self.ids_BT, positions_BT=self.position_BT, document_BT=self.document_BT)

    @property
    def further(self) -> dict[str, Tensor | None]:
        """The decoder's keyword arguments besides ids and targets."""
        places = {"predicted_BP": self.place_BP, "positions_BT": self.position_BT}
        return {**places, "document_BT": self.document_BT}

    def nats(self, model: nn.Module) -> Tensor:
        """Return the summed nats over the targets, or the summed squared errors."""
        nats: Tensor = model(self.ids_BT, self.target_BP, **self.further)
        return nats


def on_device(batch: Batch, device: torch.device) -> Inputs:
    """Copy a batch to a device without waiting for the copy."""
    tensors: dict[str, Any] = {}
    for name in Inputs._fields:
        array = getattr(batch, name)
        tensors[name] = array
        if array is not None:
            tensor = torch.as_tensor(array)
            tensor = tensor.pin_memory() if device.type == "cuda" else tensor
            tensors[name] = tensor.to(device, non_blocking=True)
    return Inputs(**tensors)


def rounded(losses: Iterable[Any]) -> list[float | None]:
    """Return losses rounded to six decimals; None for one that is not finite."""
    return [round(loss, 6) if math.isfinite(loss) else None for loss in map(float, losses)]


def significant(numbers_N: Tensor) -> list[float | None]:
    """Return numbers with six significant digits; None for one that is not finite."""
    numbers = numbers_N.double().tolist()
    return [float(f"{number:.6g}") if math.isfinite(number) else None for number in numbers]


@torch.no_grad()
def held_out_loss(
    model: nn.Module,
    held_out: Batch,
    *,
    micro_batch_size: int,
    device: torch.device,
    parallel: Any = None,
    should_stop: Callable[[], bool] = lambda: False,
) -> float | None:
    """Return the mean nats per predicted token, or the mean squared error of real numbers.

    It is the same on every rank of a `Parallel`. None if `should_stop`, called before every
    micro-batch, returned true.
    """
    rank, world_size = (parallel.rank, parallel.world_size) if parallel else (0, 1)
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

    total = parallel.sum(nats) if parallel else nats
    return float(total) / held_out.num_targets


class _Stopped(Exception):  # noqa: N818
    """The run was asked to stop; the same command starts the probes again."""


@dataclass(frozen=True)
class Finished:
    """A finished model, which the files of probes/ question.

    `rows_at_once` is of the training length, in a micro-batch.
    """

    decoder: Decoder
    config: RunConfig
    data: Any
    rows_at_once: int
    should_stop: Callable[[], bool] = lambda: False

    def ask(self, probes: Sequence[str]) -> dict[str, Any] | None:
        """Return each probe's answer, as plain values, by its name; None if asked to stop."""
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
