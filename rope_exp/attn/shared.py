"""Attention with keys and values that share a tensor, rotated on its last features.

Unlike MLA's latent, the shared tensor has no norm unless the config asks for one.
"""

from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import Literal, Self

import torch
from torch import Tensor, nn
from torch.nn.functional import rms_norm

from rope_exp.attention import (
    Attention,
    LayerCache,
    Positions,
    at_least_float32,
    fused_linear,
    normed,
    split_heads,
)
from rope_exp.identity import Refusal, section
from rope_exp.sections import SITES, AttentionConfig, Even, ModelConfig, Size


@section
class Config(AttentionConfig):
    """Keys and values that share a tensor, in `groups`; nope_dim features never rotate.

    s1: values share the nope_dim features and have rope_dim features of their own. s2: values
    equal keys before rotation. s3: values are the nope_dim features only. DeepSeek-V4's attention
    is s2 with one group, a norm and a sink.
    """

    kind: Literal["shared"] = "shared"
    # What the values share: one of the three above.
    form: Literal["s1", "s2", "s3"] = "s2"
    # Number of shared tensors; it must divide model.num_attention_heads.
    groups: Size = 1
    # Features of the shared tensor that never rotate.
    nope_dim: Size = 48
    # Features of a key that may rotate.
    rope_dim: Even = 16
    # Normalize the shared tensor, and queries without a weight, before rotation.
    norm: bool = False
    # Add one learned score per head to each softmax; its value is 0.
    sink: bool = False

    takes_heads = False
    why_not = "the values of attn.form=s3 have no feature to rotate; those of s1 and s2 have"

    def small(self) -> Self:
        return replace(self, groups=1)

    def sites(self) -> tuple[str, ...]:
        return ("q", "k") if self.form == "s3" else SITES

    def key_heads(self, model: ModelConfig) -> int:
        return self.groups

    def refusals(self, model: ModelConfig) -> Iterator[Refusal]:
        heads = model.num_attention_heads
        if heads % self.groups:
            yield Refusal("attn.groups", f"must divide model.num_attention_heads={heads}")

    def rotary_dim(self, model: ModelConfig) -> int:
        return self.rope_dim

    def widths(self, model: ModelConfig) -> tuple[int, int]:
        key_dim = self.nope_dim + self.rope_dim
        return key_dim, self.nope_dim if self.form == "s3" else key_dim


def has_values_in_keys(layer: Attention, positions: Positions) -> bool:
    """Return whether features shared by keys and values rotate alike: one row serves both."""
    if {"k", "v"} <= layer.sites:
        return positions.vo is None
    return "k" not in layer.sites and "v" not in layer.sites


class Layer(Attention):
    """Softmax attention over keys [c; R k_R] and values [c; R v_R], [c; R k_R] or c alone."""

    def __init__(self, config: ModelConfig, attn: Config, sites: Collection[str]) -> None:
        super().__init__(config, attn, sites)
        self.q_proj = self.to_heads(self.num_heads, self.key_dim)
        self.k_proj = self.to_heads(attn.groups, self.key_dim)
        self.o_proj = self.from_heads()
        if attn.norm:
            self.k_norm = nn.RMSNorm(self.key_dim, eps=config.rms_norm_eps)
        if attn.sink:
            self.sink_H = nn.Parameter(torch.zeros(self.num_heads))
        if attn.form == "s1":
            self.v_proj = self.to_heads(attn.groups, attn.rope_dim)

    def heads(self, x_BTD: Tensor, positions: Positions, cache: LayerCache | None) -> Tensor:
        projections = [self.q_proj, self.k_proj]
        if self.attn.form == "s1":
            projections.append(self.v_proj)
        q, k, *v = fused_linear(x_BTD, *projections)
        q_BTHK = split_heads(q, self.key_dim)
        k_BTGK = split_heads(k, self.key_dim)
        if self.attn.norm:
            k_BTGK = normed(self.k_norm, k_BTGK)
            q_BTHK = rms_norm(at_least_float32(q_BTHK), [self.key_dim], eps=self.k_norm.eps)
            q_BTHK = q_BTHK.to(q.dtype)
        q_BTHK = self.rotate("q", q_BTHK, positions)

        # Separate rows for values: their own features, or shared ones that rotate differently.
        rows = {"k": self.rotate("k", k_BTGK, positions)}
        if v:
            rows["v"] = self.rotate("v", split_heads(v[0], self.attn.rope_dim), positions)
        elif self.attn.form == "s2" and not has_values_in_keys(self, positions):
            rows["v"] = self.rotate("v", k_BTGK[..., self.attn.nope_dim :], positions)
        if cache is not None:
            rows = cache.append(rows)

        values = rows["k"]
        if self.attn.form == "s3" or "v" in rows:
            values = values[..., : self.attn.nope_dim]
        if "v" in rows:
            values = torch.cat([values, rows["v"]], dim=-1)
        return self.rotate("o", self.attend(q_BTHK, rows["k"], values, positions), positions)
