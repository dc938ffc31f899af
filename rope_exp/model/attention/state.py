"""Base class of the kinds with a state: sums over the past, in chunks, continued from a state.

Shapes as in `base`.
"""

from collections.abc import Mapping

from torch import Tensor

from rope_exp.model.attention.base import Attention
from rope_exp.model.attention.recurrence import Scores, chunked, parallel
from rope_exp.model.cache import LayerCache
from rope_exp.model.limits import CHUNK
from rope_exp.model.positions import Positions

# Terms of the sums over the past, by the name of their state: queries and keys, and values.
Sums = Mapping[str, tuple[Scores, Tensor]]


class StateAttention(Attention):
    """Attention by sums over the past; a kind defines the sums and its outputs from them.

    Attributes:
        chunk_size: tokens per chunk of the sums.
        num_copies: the number of neighbouring heads with the same state; the cache keeps one.
    """

    chunk_size = CHUNK
    num_copies = 1

    def heads(self, x_BTD: Tensor, at: Positions, cache: LayerCache | None) -> Tensor:
        is_real_BT11 = None if cache is None else cache.is_real(x_BTD.shape[1])
        found = {}
        states = {}
        for name, (scores, v_BTHV) in self.sums(x_BTD, at).items():
            if is_real_BT11 is not None:
                # Padding adds nothing to the sums.
                v_BTHV = v_BTHV * is_real_BT11
            earlier = None if cache is None else cache.states.get(name)
            if earlier is not None:
                earlier = earlier.repeat_interleave(self.num_copies, dim=1)
            found[name], state_BHKV = chunked(
                scores, v_BTHV, self.log_gamma(), earlier, size=self.chunk_size
            )
            states[name] = state_BHKV[:, :: self.num_copies]
        if cache is not None:
            cache.replace(x_BTD.shape[1], states)
        return self.outputs(found, at)

    def forms(self, x_BTD: Tensor, at: Positions) -> Mapping[str, Tensor]:
        log_gamma_H = self.log_gamma()
        sums = self.sums(x_BTD, at)
        found = {name: parallel(*sum_, log_gamma_H) for name, sum_ in sums.items()}
        return {"parallel": self.outputs(found, at)}

    def sums(self, x_BTD: Tensor, at: Positions) -> Sums:
        """Return the terms to sum over the past, rotated at the sites that rotate."""
        raise NotImplementedError

    def log_gamma(self) -> Tensor:
        """Return the log of each head's decay per token, [H]; by default a buffer of this name."""
        return self.get_buffer("log_gamma_H")

    def outputs(self, found: Mapping[str, Tensor], at: Positions) -> Tensor:
        """Return o_BTHV from the sums, rotated back if O rotates."""
        raise NotImplementedError
