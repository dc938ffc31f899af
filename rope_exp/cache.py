"""The decoder's cache of earlier tokens, so that decoding computes new tokens only.

It holds keys and values, or their latent, or a state, as the kind of attention reads them: already
rotated at their own positions. With model.token_shift it also holds the newest input of each
layer's attention. Each layer's attention appends to its part; prefill appends many tokens at once.
Under autocast keys and values keep the narrow dtype in which they are read. States are float32 at
least: in a narrow sum over many tokens, the contribution of one more would vanish.

Shapes: B batch, T new tokens, E entries kept, F frequencies.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass
class LayerCache:
    """One layer's part of the cache, without gradients.

    Attributes:
        window: the number of keys that a query attends to, including its own; None: all.
        pads_B: the number of padding tokens at the start of each row; None: none.
        num_seen: tokens so far, including padding.
        states: tensors that do not grow with the tokens, by name.
    """

    window: int | None = None
    pads_B: Tensor | None = None
    num_seen: int = 0
    states: dict[str, Tensor] = field(default_factory=dict)
    _buffers: dict[str, Tensor] = field(default_factory=dict)
    # The rows of the buffers from _first up to _end are kept.
    _first: int = 0
    _end: int = 0

    def append(self, **new: Tensor) -> dict[str, Tensor]:
        """Append new rows, and return all rows that are kept, [B, E, ...] each.

        Args:
            new: tensors by name, [B, T, ...] each; the same names each time.
        """
        num_new = next(iter(new.values())).shape[1]
        if self.window is not None:
            # The first new query attends to the last window - 1 earlier keys.
            self._first = max(self._first, self._end - (self.window - 1))
        self._make_room(new)
        for name, x in new.items():
            self._buffers[name][:, self._end : self._end + num_new] = x.detach()
        self._end += num_new
        self.num_seen += num_new
        return self.rows

    def replace(self, num_new: int, states: Mapping[str, Tensor]) -> None:
        """Replace the states, after `num_new` more tokens."""
        self.num_seen += num_new
        self.states = {name: state.detach() for name, state in states.items()}

    @property
    def rows(self) -> dict[str, Tensor]:
        """The rows kept for each token, [B, E, ...] each, by name."""
        return {name: buffer[:, self._first : self._end] for name, buffer in self._buffers.items()}

    def is_prefill(self, num_new: int) -> bool:
        """Return whether the newest tokens are the first ones, none of them padding."""
        return self.pads_B is None and self.num_seen == num_new

    @property
    def num_pads(self) -> Tensor | None:
        """The number of padding tokens among the entries kept; None: no row is padded."""
        if self.pads_B is None:
            return None
        return self.pads_B - (self.num_seen - (self._end - self._first))

    def is_real(self, num_new: int, *, before: int = 0) -> Tensor | None:
        """Return whether each of the next tokens is not padding, [B, T, 1, 1]; None: all are real.

        Args:
            before: test the tokens this many places before them instead.
        """
        if self.pads_B is None:
            return None
        first = self.num_seen - before
        place_T = torch.arange(first, first + num_new, device=self.pads_B.device)
        return (place_T >= self.pads_B[:, None])[:, :, None, None]

    def _make_room(self, new: Mapping[str, Tensor]) -> None:
        """Make room for new rows after those that are kept.

        A buffer that is enlarged gets twice the room needed, so that tokens are rarely copied. Once
        a window has moved past a long prompt, the prompt's room is released.
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
    """The cache of all layers. `model(ids_BT, cache=cache)` continues from it.

    Args:
        windows: of each layer; None: it keeps all keys.
    Attributes:
        length: the tokens so far, including padding.
    """

    def __init__(self, windows: Sequence[int | None], pads_B: Tensor | None = None) -> None:
        self.layers = [LayerCache(window, pads_B) for window in windows]
        self.pads_B = pads_B
        self.length = 0

    def positions(self, num_new: int, device: torch.device) -> Tensor:
        """Return the positions of the next tokens, [T], or [B, T] if rows are padded.

        A padded row's positions begin at 0 after its padding; padding itself has position 0.
        """
        place_T = torch.arange(self.length, self.length + num_new, device=device)
        if self.pads_B is not None:
            place_T = (place_T - self.pads_B[:, None]).clamp(min=0)
        return place_T
