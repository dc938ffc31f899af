"""A model's loss on a batch, by micro-batches on the device."""

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from rope_exp.batches import Batch
from rope_exp.decoder import Decoder


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
