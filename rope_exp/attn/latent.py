"""MLA: keys and values of all heads from one latent, and one rotating key that all heads share.

Training expands the latent to each head's keys and values. Decoding absorbs that expansion into
queries and outputs, q_C' (W_K c) = (W_K' q_C)' c and sum a (W_V c) = W_V sum a c, so only the
latent c and the rotating key k_R are cached. Parameters have the names of transformers'
DeepseekV3Attention.

Shapes: L features of the latent, C of keys that do not rotate, R that may.
"""

from collections.abc import Collection, Mapping
from typing import Literal

import torch
from torch import Tensor, nn

from rope_exp.attention import Attention, LayerCache, Positions, normed, split_heads
from rope_exp.attn.shared import has_values_in_keys
from rope_exp.identity import section
from rope_exp.sections import SITES, AttentionConfig, Even, ModelConfig, Size

LATENT_EPS = 1e-6


@section
class Config(AttentionConfig):
    """MLA (`attn=mla`, `attn=mla_vo`): K and V from one latent of `kv_rank`, plus a rotating key.

    The keys of a head are [k_C; k_R], nope_dim and rope_dim wide; all heads share k_R. With
    `value_rope` its values are [v_C; k_R], and its output is rotated back.
    """

    kind: Literal["latent"] = "latent"
    # Width of the latent for keys and values.
    kv_rank: Size = 64
    # null: queries are projected from x itself.
    q_rank: Size | None = None
    # Features of a head's queries and keys that never rotate.
    nope_dim: Size = 48
    # Features of a head's queries and keys that may rotate.
    rope_dim: Even = 16
    # Width of v_C.
    value_dim: Size = 64
    # Append k_R to the values, so that v and o can rotate.
    value_rope: bool = False

    takes_heads = False
    why_not = (
        "the values of attn=mla have no feature to rotate; attn=mla_vo (attn.value_rope=true) has"
    )

    def sites(self) -> tuple[str, ...]:
        return SITES if self.value_rope else ("q", "k")

    def key_heads(self, model: ModelConfig) -> int:
        # All heads share k_R.
        return 1

    def rotary_dim(self, model: ModelConfig) -> int:
        return self.rope_dim

    def widths(self, model: ModelConfig) -> tuple[int, int]:
        out_dim = self.value_dim + self.rope_dim * self.value_rope
        return self.nope_dim + self.rope_dim, out_dim


class Layer(Attention):
    """Softmax attention over keys [W_K c; R k_R] and values W_V c, with scale 1/sqrt(C + R)."""

    def __init__(self, config: ModelConfig, attn: Config, sites: Collection[str]) -> None:
        super().__init__(config, attn, sites)
        self.row_widths = [attn.kv_rank, attn.rope_dim]
        self.head_widths = [attn.nope_dim, attn.value_dim]
        width = config.hidden_size
        if attn.q_rank is None:
            self.q_proj = self.to_heads(self.num_heads, self.key_dim)
        else:
            self.q_a_proj = nn.Linear(width, attn.q_rank, bias=False)
            self.q_b_proj = self.to_heads(self.num_heads, self.key_dim, attn.q_rank)
        self.kv_a_proj_with_mqa = nn.Linear(width, sum(self.row_widths), bias=False)
        self.kv_b_proj = self.to_heads(self.num_heads, sum(self.head_widths), attn.kv_rank)
        self.o_proj = self.from_heads()
        self.kv_a_layernorm = nn.RMSNorm(attn.kv_rank, eps=LATENT_EPS)
        if attn.q_rank is not None:
            self.q_a_layernorm = nn.RMSNorm(attn.q_rank, eps=LATENT_EPS)

    def heads(self, x_BTD: Tensor, positions: Positions, cache: LayerCache | None) -> Tensor:
        if self.attn.q_rank is None:
            q = self.q_proj(x_BTD)
        else:
            q = self.q_b_proj(normed(self.q_a_layernorm, self.q_a_proj(x_BTD)))
        q_BTHK = self.rotate("q", split_heads(q, self.key_dim), positions)

        # One head of [c; k_R], and k_R again if V rotates it differently.
        c_BTL, k_BTR = torch.split(self.kv_a_proj_with_mqa(x_BTD), self.row_widths, dim=-1)
        both_BT1K = torch.cat([normed(self.kv_a_layernorm, c_BTL), k_BTR], dim=-1)[:, :, None]
        rows = {"k": self.rotate("k", both_BT1K, positions)}
        if self.attn.value_rope and not has_values_in_keys(self, positions):
            rows["v"] = self.rotate("v", k_BTR[:, :, None], positions)
        if cache is not None:
            rows = cache.append(rows)
            if cache.num_seen > x_BTD.shape[1]:
                return self._absorbed(q_BTHK, rows, positions)

        c_BTL, k_BTR = torch.split(rows["k"][:, :, 0], self.row_widths, dim=-1)
        expanded = split_heads(self.kv_b_proj(c_BTL), sum(self.head_widths))
        k_BTHC, v_BTHV = torch.split(expanded, self.head_widths, dim=-1)
        k_BTHR = k_BTR[:, :, None].expand(-1, -1, self.num_heads, -1)
        k_BTHK = torch.cat([k_BTHC, k_BTHR], dim=-1)
        if self.attn.value_rope:
            v_BTHR = rows["v"].expand_as(k_BTHR) if "v" in rows else k_BTHR
            v_BTHV = torch.cat([v_BTHV, v_BTHR], dim=-1)
        return self.rotate("o", self.attend(q_BTHK, k_BTHK, v_BTHV, positions), positions)

    def forms(self, x_BTD: Tensor, positions: Positions) -> Mapping[str, Tensor]:
        # Tokens after others are read in the absorbed form.
        return {"absorbed": self.heads(x_BTD, positions, LayerCache(num_seen=1))}

    def _absorbed(self, q_BTHK: Tensor, rows: Mapping[str, Tensor], positions: Positions) -> Tensor:
        """Return the outputs from one head of keys [c; k_R] and values c for all queries."""
        num_latent = self.attn.kv_rank
        weight_HOL = torch.unflatten(self.kv_b_proj.weight, 0, (self.num_heads, -1))
        to_k_HCL, to_v_HVL = torch.split(weight_HOL.to(q_BTHK.dtype), self.head_widths, dim=1)
        q_BTHC, q_BTHR = q_BTHK.tensor_split([self.attn.nope_dim], dim=-1)
        q_BTHL = torch.einsum("bthc,hcl->bthl", q_BTHC, to_k_HCL)

        # Scores keep the scale of the expanded form.
        q_BTHW = torch.cat([q_BTHL, q_BTHR], dim=-1)
        q_BTHW = q_BTHW * (q_BTHW.shape[-1] / self.key_dim) ** 0.5
        v_BT1W = rows["k"][..., :num_latent]
        if self.attn.value_rope:
            v_BT1W = torch.cat([v_BT1W, rows["v"]], dim=-1) if "v" in rows else rows["k"]
        o = self.attend(q_BTHW, rows["k"], v_BT1W, positions)

        o_BTHL, o_BTHR = o.tensor_split([num_latent], dim=-1)
        o_BTHC = torch.einsum("bthl,hvl->bthv", o_BTHL, to_v_HVL)
        return self.rotate("o", torch.cat([o_BTHC, o_BTHR], dim=-1), positions)
