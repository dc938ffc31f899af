"""Linear attention: a similarity that factors, so that the past is a sum over keys.

phi = elu + 1 is positive, but products of rotated features can be negative. Hence the three forms,
which differ in their similarity and its rotation (Su 2021, section 3.3).
"""

from collections.abc import Collection, Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from rope_exp.attention import Positions, at_least_float32, fused_linear, split_heads
from rope_exp.attn._recurrence import StateAttention, Terms
from rope_exp.identity import section
from rope_exp.sections import AttentionConfig, ModelConfig, Positive


@section
class Config(AttentionConfig):
    """Linear attention, phi = elu + 1: o_i = sum_j sim_ij v_j / max(sum_j sim_ij, eps).

    numerator: sim = (R phi(q))' (R phi(k)) in the numerator, phi(q)' phi(k) in the denominator (Su
    2021, eq. 19). both: rotated in the denominator, too, whose sum can be negative. one_plus_cos:
    sim = 1 + cos of the angle between rotated q and k.
    """

    kind: Literal["linear"] = "linear"
    # The similarity: one of the three above.
    form: Literal["numerator", "both", "one_plus_cos"] = "numerator"
    # The least value of the denominator.
    eps: Positive = 1e-6

    keeps_keys = False
    # It divides by a sum that eps can replace.
    has_floors = True

    def head_states(self, model: ModelConfig) -> int:
        # Sums over keys of values and of a one; 1 + cos has one more key feature, which is 1.
        features = model.features_per_head
        keys = features + (self.form == "one_plus_cos")
        return model.num_attention_heads * keys * (features + 1)


class Layer(StateAttention):
    """o_i = sum over j <= i of sim_ij v_j / max(sum over j <= i of sim_ij, eps)."""

    def __init__(self, config: ModelConfig, attn: Config, sites: Collection[str]) -> None:
        super().__init__(config, attn, sites)
        self.project_as_llama()
        self.num_copies = self.num_heads // config.num_key_value_heads

    def sums(self, x_BTD: Tensor, positions: Positions) -> list[Terms]:
        q, k, v = fused_linear(x_BTD, self.q_proj, self.k_proj, self.v_proj)
        q_BTHK = self._feature(split_heads(q, self.head_dim))
        k_BTGK = self._feature(split_heads(k, self.head_dim))
        v_BTGK = self.rotate("v", split_heads(v, self.head_dim), positions)
        one_BTG1 = torch.ones_like(v_BTGK[..., :1])
        rotated = (self.rotate("q", q_BTHK, positions), self.rotate("k", k_BTGK, positions))
        if self.attn.form == "numerator":
            return [(rotated, v_BTGK), ((q_BTHK, k_BTGK), one_BTG1)]
        # One sum serves the numerator and the denominator.
        return [(rotated, torch.cat([v_BTGK, one_BTG1], dim=-1))]

    def outputs(self, results: Sequence[Tensor], positions: Positions) -> Tensor:
        above_BTHK = results[0][..., : self.head_dim]
        o_BTHK = at_least_float32(above_BTHK) / self.below(results).clamp(min=self.attn.eps)
        return self.rotate("o", o_BTHK.to(above_BTHK.dtype), positions)

    def below(self, results: Sequence[Tensor]) -> Tensor:
        """Return the sums below the fraction, [B, T, H, 1], before eps floors them."""
        if len(results) == 2:
            return at_least_float32(results[1])
        return at_least_float32(results[0][..., self.head_dim :])

    def _feature(self, x_BTHK: Tensor) -> Tensor:
        """Return phi(x), or [1; x/|x|] (two of these multiply to 1 + cos), in x's dtype."""
        if self.attn.form == "one_plus_cos":
            feature = F.pad(F.normalize(at_least_float32(x_BTHK), dim=-1), (1, 0), value=1.0)
        else:
            feature = F.elu(at_least_float32(x_BTHK)) + 1
        return feature.to(x_BTHK.dtype)
