"""Keys and values that share a tensor, rotated on its last features.

The sequel's forms: s1, values share what does not rotate, and have features of their own beside
it; s2, values are the keys before either rotates; s3, values are what does not rotate. No norm
stands on the shared tensor, where a latent has one.

Shapes as in `base`; C features that do not rotate, R that may.
"""

from collections.abc import Collection

import torch
from torch import Tensor, nn

from rope_exp.config.kinds import SharedConfig
from rope_exp.config.sections import ModelConfig
from rope_exp.model.attention.base import Attention, Tables, by_heads, linears
from rope_exp.model.cache import LayerCache


class SharedAttention(Attention):
    """Softmax attention over keys [c; R k_R] and values [c; R v_R], [c; R k_R] or c alone."""

    q_proj: nn.Linear
    k_proj: nn.Linear
    v_proj: nn.Linear  # of s1

    def __init__(self, config: ModelConfig, attn: SharedConfig, sites: Collection[str]) -> None:
        super().__init__(config, attn, sites)
        self.attn = attn
        self._shared = [self.k_proj, self.v_proj] if attn.form == "s1" else [self.k_proj]

    def heads(self, x_BTD: Tensor, tables: Tables, cache: LayerCache | None) -> Tensor:
        q, *k_and_v = linears(x_BTD, self.q_proj, *self._shared)
        q_BTHK = self.turn("q", by_heads(q, self.attn.key_dim), tables)
        rows = self._rows(*k_and_v, tables=tables)
        if cache is not None:
            rows = dict(zip(rows, cache.append(**rows), strict=True))

        k_BEGK = torch.cat([rows["c"], rows["k"]], dim=-1)
        v_BEGV = rows["c"]
        if self.attn.form != "s3":
            v_BEGV = torch.cat([rows["c"], rows["v"]], dim=-1) if "v" in rows else k_BEGK

        o_BTHV = self.attend(q_BTHK, k_BEGK, v_BEGV, cache)
        return self.turn("o", o_BTHV, tables)

    def _rows(self, k: Tensor, *v: Tensor, tables: Tables) -> dict[str, Tensor]:
        """Return the distinct tensors that keys and values consist of, [B, T, G, ...] each."""
        widths = [self.attn.nope_dim, self.attn.rope_dim]
        c_BTGC, k_BTGR = torch.split(by_heads(k, self.attn.key_dim), widths, dim=-1)
        rows = {"c": c_BTGC, "k": self.turn("k", k_BTGR, tables)}

        if v:
            rows["v"] = self.turn("v", by_heads(v[0], self.attn.rope_dim), tables)
        elif self.attn.form == "s2" and ("k" in self.sites) != ("v" in self.sites):
            rows["v"] = self.turn("v", k_BTGR, tables)
        return rows
