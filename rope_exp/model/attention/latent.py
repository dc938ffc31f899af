"""MLA: keys and values of all heads from one latent, and one rotating key that all heads share.

Training expands the latent to keys and values of each head. Decoding absorbs that expansion into
queries and outputs, q_C' (W_K c) = (W_K' q_C)' c and sum a (W_V c) = W_V sum a c, so that the
latent c and the rotating key k_R are all that is kept. Parameters bear the names of transformers'
DeepseekV3Attention.

With `value_rope` the rotating key stands in every head's values too, turned as V and O say:
v = [v_C; R_j k_R], o = [o_C; R_i' o_R].

Shapes as in `base`; L features of the latent, C of keys that do not rotate, R that may, E positions
so far.
"""

from collections.abc import Collection, Mapping

import torch
from torch import Tensor, nn

from rope_exp.config.kinds import LatentConfig
from rope_exp.config.sections import ModelConfig
from rope_exp.model.attention.base import Attention, Tables, by_heads
from rope_exp.model.attention.kernel import attention_after, wide
from rope_exp.model.cache import LayerCache

LATENT_EPS = 1e-6


class LatentAttention(Attention):
    """Softmax attention over keys [W_K c; R k_R] and values W_V c, of scale 1/sqrt(C + R)."""

    q_proj: nn.Linear
    q_a_proj: nn.Linear  # where queries have a rank
    q_b_proj: nn.Linear
    kv_a_proj_with_mqa: nn.Linear
    kv_b_proj: nn.Linear

    def __init__(self, config: ModelConfig, attn: LatentConfig, sites: Collection[str]) -> None:
        super().__init__(config, attn, sites)
        self.attn = attn
        self.kv_a_layernorm = nn.RMSNorm(attn.kv_rank, eps=LATENT_EPS)
        if attn.q_rank is not None:
            self.q_a_layernorm = nn.RMSNorm(attn.q_rank, eps=LATENT_EPS)

    def heads(self, x_BTD: Tensor, tables: Tables, cache: LayerCache | None) -> Tensor:
        if cache is not None:
            return self._absorbed(x_BTD, tables, cache)

        q_BTHK = self.turn("q", self._queries(x_BTD), tables)
        rows = self._rows(x_BTD, tables)
        num_heads = q_BTHK.shape[2]
        k_BTHR = rows["k"].expand(-1, -1, num_heads, -1)

        of_head = [self.attn.nope_dim, self.attn.value_dim]
        expanded = by_heads(self.kv_b_proj(rows["c"]), sum(of_head))
        k_BTHC, v_BTHV = torch.split(expanded, of_head, dim=-1)
        k_BTHK = torch.cat([k_BTHC, k_BTHR], dim=-1)
        if self.attn.value_rope:
            v_BTHR = rows.get("v", rows["k"]).expand(-1, -1, num_heads, -1)
            v_BTHV = torch.cat([v_BTHV, v_BTHR], dim=-1)

        return self.turn("o", self.attend(q_BTHK, k_BTHK, v_BTHV, cache), tables)

    def forms(self, x_BTD: Tensor, tables: Tables) -> Mapping[str, Tensor]:
        return {"absorbed": self._absorbed(x_BTD, tables, LayerCache())}

    def _absorbed(self, x_BTD: Tensor, tables: Tables, cache: LayerCache) -> Tensor:
        q_BTHK = self.turn("q", self._queries(x_BTD), tables)
        new = self._rows(x_BTD, tables)
        rows = dict(zip(new, cache.append(**new), strict=True))

        # One head of keys [c; k_R] and values c for all queries.
        weight_HOL = torch.unflatten(self.kv_b_proj.weight, 0, (q_BTHK.shape[2], -1))
        to_k_HCL, to_v_HVL = torch.split(
            weight_HOL, [self.attn.nope_dim, self.attn.value_dim], dim=1
        )
        q_BTHC, q_BTHR = torch.split(q_BTHK, [self.attn.nope_dim, self.attn.rope_dim], dim=-1)
        q_BTHL = torch.einsum("bthc,hcl->bthl", q_BTHC, to_k_HCL.to(q_BTHC.dtype))

        c_BE1L = rows["c"][:, :, None]
        values = [c_BE1L]
        if self.attn.value_rope:
            values.append(rows.get("v", rows["k"]))
        o = attention_after(
            torch.cat([q_BTHL, q_BTHR], dim=-1),
            torch.cat([c_BE1L, rows["k"]], dim=-1),
            torch.cat(values, dim=-1),
            scale=self.attn.key_dim**-0.5,
            window=self.config.window,
            num_pads_B=cache.pads_kept_B,
        )

        o_BTHL, o_BTHR = o.tensor_split([self.attn.kv_rank], dim=-1)
        o_BTHC = torch.einsum("bthl,hvl->bthv", o_BTHL, to_v_HVL.to(o_BTHL.dtype))
        return self.turn("o", torch.cat([o_BTHC, o_BTHR], dim=-1), tables)

    def _queries(self, x_BTD: Tensor) -> Tensor:
        """Return [q_C; q_R] of each head."""
        if self.attn.q_rank is None:
            return by_heads(self.q_proj(x_BTD), self.attn.key_dim)
        q_BTL = _normed(self.q_a_layernorm, self.q_a_proj(x_BTD))
        return by_heads(self.q_b_proj(q_BTL), self.attn.key_dim)

    def _rows(self, x_BTD: Tensor, tables: Tables) -> dict[str, Tensor]:
        """Return the latent c_BTL, the rotating key k_BT1R, and v_BT1R where V turns otherwise."""
        widths = [self.attn.kv_rank, self.attn.rope_dim]
        c_BTL, k_BTR = torch.split(self.kv_a_proj_with_mqa(x_BTD), widths, dim=-1)
        k_BT1R = k_BTR[:, :, None]
        rows = {"c": _normed(self.kv_a_layernorm, c_BTL), "k": self.turn("k", k_BT1R, tables)}
        if self.attn.value_rope and ("k" in self.sites) != ("v" in self.sites):
            rows["v"] = self.turn("v", k_BT1R, tables)
        return rows


def _normed(norm: nn.RMSNorm, x: Tensor) -> Tensor:
    """Return x normed in float32 at least, in its own dtype."""
    normed: Tensor = norm(wide(x))
    return normed.to(x.dtype)
