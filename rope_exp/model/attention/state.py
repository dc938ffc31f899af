"""What the kinds with a state share: sums over the past, by chunks in training, by a state after.

Shapes as in `base`.
"""

from collections.abc import Mapping

from torch import Tensor

from rope_exp.config.costs import CHUNK
from rope_exp.model.attention.base import Attention, Tables
from rope_exp.model.attention.recurrence import Scores, chunked, parallel
from rope_exp.model.cache import LayerCache

# What is summed over the past, by the name of its state: queries and keys, and values.
Sums = Mapping[str, tuple[Scores, Tensor]]


class StateAttention(Attention):
    """A kind names its sums, and says what becomes of them.

    Attributes:
        chunk_size: of the sums, in tokens.
        num_copies: how many neighbouring heads have one state, of which one is kept.
    """

    chunk_size = CHUNK
    num_copies = 1

    def heads(self, x_BTD: Tensor, tables: Tables, cache: LayerCache | None) -> Tensor:
        sums = self.sums(x_BTD, tables)
        if cache is not None:
            sums = {name: _silenced(cache, *sum_) for name, sum_ in sums.items()}

        found = {}
        states = {}
        for name, (scores, v_BTHV) in sums.items():
            earlier = None if cache is None else cache.states.get(name)
            if earlier is not None:
                earlier = earlier.repeat_interleave(self.num_copies, dim=1)
            found[name], state_BHKV = chunked(
                scores, v_BTHV, self.log_gamma(), earlier, size=self.chunk_size
            )
            states[name] = state_BHKV[:, :: self.num_copies]
        if cache is not None:
            cache.replace(x_BTD.shape[1], states)
        return self.outputs(found, tables)

    def forms(self, x_BTD: Tensor, tables: Tables) -> Mapping[str, Tensor]:
        log_gamma_H = self.log_gamma()
        sums = self.sums(x_BTD, tables)
        found = {name: parallel(*sum_, log_gamma_H) for name, sum_ in sums.items()}
        return {"parallel": self.outputs(found, tables)}

    def sums(self, x_BTD: Tensor, tables: Tables) -> Sums:
        """Return what is summed over the past, turned where its sites rotate."""
        raise NotImplementedError

    def log_gamma(self) -> Tensor:
        """Return the log of each head's decay a token, [H]."""
        raise NotImplementedError

    def outputs(self, found: Mapping[str, Tensor], tables: Tables) -> Tensor:
        """Return o_BTHV of the sums, turned back where O rotates."""
        raise NotImplementedError

    def shift_back(self, cache: LayerCache, tables: Tables) -> None:
        for name, state_BHKV in cache.states.items():
            cache.states[name] = self.shifted_state(name, state_BHKV, tables)

    def shifted_state(self, name: str, state_BHKV: Tensor, tables: Tables) -> Tensor:
        """Return a sum of k_j v_j' with both turned back by one angle, where they rotate."""
        for site, dim in (("k", 2), ("v", 3)):
            # One of 1 feature holds ones, which do not turn.
            if state_BHKV.shape[dim] > 1:
                swapped = state_BHKV.transpose(dim, 3)
                state_BHKV = self.shifted(site, swapped, tables).transpose(dim, 3)
        return state_BHKV


def _silenced(cache: LayerCache, scores: Scores, v_BTHV: Tensor) -> tuple[Scores, Tensor]:
    """Return what padding adds nothing to."""
    is_real_BT11 = cache.is_real(v_BTHV.shape[1])
    return (scores, v_BTHV) if is_real_BT11 is None else (scores, v_BTHV * is_real_BT11)
