"""A batch on the device: its micro-batches, and a model's loss on it.

Shapes as in `data.batches`.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn

from rope_exp.data.batches import Batch
from rope_exp.model.decoder import Decoder


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
            given = {name: each for name, each in self._asdict().items() if each is not None}
            yield self._replace(**{name: each[part] for name, each in given.items()})

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
