"""What the kinds with a state share: sums over the past, by chunks in training, by a state after.

Shapes as in `base`.
"""

from collections.abc import Mapping

from torch import Tensor

from rope_exp.config.costs import CHUNK
from rope_exp.model.attention.base import Attention
from rope_exp.model.attention.recurrence import Scores, chunked, parallel
from rope_exp.model.cache import LayerCache
from rope_exp.model.positions import Positions

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

    def heads(self, x_BTD: Tensor, at: Positions, cache: LayerCache | None) -> Tensor:
        sums = self.sums(x_BTD, at)
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
        return self.outputs(found, at)

    def forms(self, x_BTD: Tensor, at: Positions) -> Mapping[str, Tensor]:
        log_gamma_H = self.log_gamma()
        sums = self.sums(x_BTD, at)
        found = {name: parallel(*sum_, log_gamma_H) for name, sum_ in sums.items()}
        return {"parallel": self.outputs(found, at)}

    def sums(self, x_BTD: Tensor, at: Positions) -> Sums:
        """Return what is summed over the past, turned where its sites rotate."""
        raise NotImplementedError

    def log_gamma(self) -> Tensor:
        """Return the log of each head's decay a token, [H]."""
        raise NotImplementedError

    def outputs(self, found: Mapping[str, Tensor], at: Positions) -> Tensor:
        """Return o_BTHV of the sums, turned back where O rotates."""
        raise NotImplementedError

    def shift_back(self, cache: LayerCache, at: Positions) -> None:
        for name, state_BHKV in cache.states.items():
            cache.states[name] = self.shifted_state(name, state_BHKV, at)

    def shifted_state(self, name: str, state_BHKV: Tensor, at: Positions) -> Tensor:
        """Return a sum of k_j v_j' with both turned back by one angle, where they rotate."""
        # A column of K, or a row of V, is turned like what is kept of a token.
        if state_BHKV.shape[2] > 1:
            columns_BVHK = state_BHKV.permute(0, 3, 1, 2)
            state_BHKV = self.shifted("k", columns_BVHK, at).permute(0, 2, 3, 1)
        # One of 1 feature holds ones, which do not turn.
        if state_BHKV.shape[3] > 1:
            rows_BKHV = state_BHKV.transpose(1, 2)
            state_BHKV = self.shifted("v", rows_BKHV, at).transpose(1, 2)
        return state_BHKV


def _silenced(cache: LayerCache, scores: Scores, v_BTHV: Tensor) -> tuple[Scores, Tensor]:
    """Return what padding adds nothing to."""
    is_real_BT11 = cache.is_real(v_BTHV.shape[1])
    return (scores, v_BTHV) if is_real_BT11 is None else (scores, v_BTHV * is_real_BT11)
