"""What a decoder keeps of earlier tokens, so that the next ones cost no more than themselves.

Keys and values, or the latent that they come from, or a state: each stored as its kind reads it,
turned at its own position. With model.token_shift the newest input of a layer's attention is kept
too. A layer's attention appends to its part; prefill is an append of many. Under autocast keys and
values are kept as narrow as they are read. States stay float32 at least: into a narrow sum of many
tokens, what one more adds would vanish.

Shapes: B batch, T new tokens, E entries kept, F frequencies.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass
class LayerCache:
    """One layer's part. It holds numbers, no gradients.

    Attributes:
        window: how many keys a query meets, its own among them; None: all.
        pads_B: how many tokens at a row's beginning are padding; None: none.
        num_seen: tokens so far, padding among them.
        states: what does not grow, by name.
    """

    window: int | None = None
    pads_B: Tensor | None = None
    num_seen: int = 0
    states: dict[str, Tensor] = field(default_factory=dict)
    _buffers: dict[str, Tensor] = field(default_factory=dict)
    # Of the rows in the buffers, which are kept.
    _first: int = 0
    _end: int = 0

    def append(self, **new: Tensor) -> dict[str, Tensor]:
        """Keep these after what there is, and return all that is kept, [B, E, ...] each.

        Args:
            new: by name, [B, T, ...] each; the same names each time.
        """
        num_new = next(iter(new.values())).shape[1]
        if self.window is not None:
            # The first of the new queries meets the last window - 1.
            self._first = max(self._first, self._end - (self.window - 1))
        self._make_room(new)
        for name, x in new.items():
            self._buffers[name][:, self._end : self._end + num_new] = x.detach()
        self._end += num_new
        self.num_seen += num_new
        return self.rows

    def replace(self, num_new: int, states: Mapping[str, Tensor]) -> None:
        """Keep these states, after so many new tokens."""
        self.num_seen += num_new
        self.states = {name: state.detach() for name, state in states.items()}

    @property
    def rows(self) -> dict[str, Tensor]:
        """What is kept of each token, [B, E, ...] each, by name."""
        return {name: buffer[:, self._first : self._end] for name, buffer in self._buffers.items()}

    def is_prefill(self, num_new: int) -> bool:
        """Whether the newest tokens are all there is, none of them padding."""
        return self.pads_B is None and self._end - self._first == num_new

    @property
    def num_pads(self) -> Tensor | None:
        """How many of the entries kept are padding; None: none."""
        if self.pads_B is None:
            return None
        return self.pads_B - (self.num_seen - (self._end - self._first))

    def is_real(self, num_new: int, *, before: int = 0) -> Tensor | None:
        """Return 1 for each of the next tokens that is no padding, [B, T, 1, 1]; None: all are.

        Args:
            before: ask it of the tokens that come so many places before these.
        """
        if self.pads_B is None:
            return None
        first = self.num_seen - before
        place_T = torch.arange(first, first + num_new, device=self.pads_B.device)
        return (place_T >= self.pads_B[:, None])[:, :, None, None]

    def _make_room(self, new: Mapping[str, Tensor]) -> None:
        """Have room for these rows after those that are kept.

        What is made anew has twice the room that is needed, so that a token is rarely copied; the
        room of a long prompt is given back once a window has gone past it.
        """
        num_new = next(iter(new.values())).shape[1]
        num_kept = self._end - self._first
        if self._buffers and self._end + num_new <= next(iter(self._buffers.values())).shape[1]:
            return
        room = num_new if not self._buffers else 2 * (num_kept + num_new)
        rows = self.rows
        for name, x in new.items():
            larger = x.new_zeros((x.shape[0], room, *x.shape[2:]))
            if name in rows:
                larger[:, :num_kept] = rows[name]
            self._buffers[name] = larger
        self._first, self._end = 0, num_kept


class Cache:
    """What a decoder keeps, of all layers. `model(ids_BT, cache=cache)` goes on from it.

    Attributes:
        length: the tokens so far, padding among them.
        origin: what is taken off a token's place to give its position: 0 until renumbered.
    """

    def __init__(
        self, num_layers: int, *, window: int | None = None, pads_B: Tensor | None = None
    ) -> None:
        self.layers = [LayerCache(window, pads_B) for _ in range(num_layers)]
        self.pads_B = pads_B
        self.length = 0
        self.origin = 0

    def positions(self, num_new: int, device: torch.device) -> Tensor:
        """Return the positions of the next tokens, [T], or [B, T] where rows are padded.

        A padded row begins at 0 where its padding ends; padding itself has position 0.
        """
        place_T = torch.arange(self.length, self.length + num_new, device=device)
        if self.pads_B is not None:
            place_T = (place_T - self.pads_B[:, None]).clamp(min=0)
        return place_T - self.origin

    def num_numbers(self) -> int:
        """Return how many numbers are kept, of all rows and layers."""
        kept = [[*layer.rows.values(), *layer.states.values()] for layer in self.layers]
        return sum(tensor.numel() for layer in kept for tensor in layer)
