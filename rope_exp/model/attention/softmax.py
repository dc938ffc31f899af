"""Softmax attention with grouped queries: the default, and the kind of the published table.

Shapes as in `base`.
"""

from collections.abc import Collection

import torch
from torch import Tensor, nn

from rope_exp.config.kinds import SoftmaxConfig
from rope_exp.config.sections import ModelConfig
from rope_exp.model.attention.base import Attention, linears, normed, split_heads
from rope_exp.model.cache import LayerCache
from rope_exp.model.positions import Positions

# The cache's name for the newest token's input.
NEWEST = "newest"
# Initial value of mu.
BEGINNING = 0.5


class SoftmaxAttention(Attention):
    """o_i = sum over j <= i of softmax_j(q_i . k_j / sqrt(K)) v_j.

    With a sink s_h the softmax has one more term, exp(s_h), whose value is 0 (Agarwal et al. 2025).
    """

    def __init__(self, config: ModelConfig, attn: SoftmaxConfig, sites: Collection[str]) -> None:
        super().__init__(config, attn, sites)
        self.project_as_llama()
        if config.qk_norm:
            self.q_norm = nn.RMSNorm(self.head_dim, eps=config.rms_norm_eps)
            self.k_norm = nn.RMSNorm(self.head_dim, eps=config.rms_norm_eps)
        if attn.sink:
            self.sink_H = nn.Parameter(torch.zeros(self.num_heads))
        if config.token_shift:
            self.token_shift = nn.Parameter(torch.full((config.hidden_size,), BEGINNING))

    def heads(self, x_BTD: Tensor, at: Positions, cache: LayerCache | None) -> Tensor:
        q, k, v = self._projected(x_BTD, at, cache)
        q_BTHK = split_heads(q, self.head_dim)
        k_BTGK = split_heads(k, self.head_dim)
        if self.config.qk_norm:
            q_BTHK = normed(self.q_norm, q_BTHK)
            k_BTGK = normed(self.k_norm, k_BTGK)
        q_BTHK = self.turn("q", q_BTHK, at)
        k_BTGK = self.turn("k", k_BTGK, at)
        v_BTGK = self.turn("v", split_heads(v, self.head_dim), at)
        of_tokens = self._of_tokens(x_BTD, at)
        if cache is not None:
            of_tokens = cache.append(k=k_BTGK, v=v_BTGK, **of_tokens)
            k_BTGK, v_BTGK = of_tokens["k"], of_tokens["v"]
        if self.own is not None and "position_BE" in of_tokens:
            more_HTE = self.own.scores(of_tokens, q_BTHK.shape[1])
            at = with_scores(at, more_HTE, q_BTHK, k_BTGK)

        o_BTHK = self.attend(q_BTHK, k_BTGK, v_BTGK, at, cache)
        return self.turn("o", o_BTHK, at)

    def _of_tokens(self, x_BTD: Tensor, at: Positions) -> dict[str, Tensor]:
        """Return what a class of one's own needs of each token to add to the scores."""
        if self.own is None or at.position_T is None or not self.own.overrides("scores"):
            return {}
        of_tokens = self.own.of_tokens(x_BTD, at.position_T)
        if taken := of_tokens.keys() & {"k", "v", "position_BE"}:
            raise ValueError(f"of_tokens: the name {taken.pop()} is taken")
        return {**of_tokens, "position_BE": at.position_T.expand(len(x_BTD), -1)}

    def _projected(
        self, x_BTD: Tensor, at: Positions, cache: LayerCache | None
    ) -> tuple[Tensor, ...]:
        """Return q, k and v; with model.token_shift, k and v project x_t + mu (x_{t-1} - x_t)."""
        if not self.config.token_shift:
            return linears(x_BTD, self.q_proj, self.k_proj, self.v_proj)
        change_BTD = previous(x_BTD, at, cache) - x_BTD
        shifted_BTD = x_BTD + self.token_shift * change_BTD
        return self.q_proj(x_BTD), *linears(shifted_BTD, self.k_proj, self.v_proj)


def with_scores(
    at: Positions, more_HTE: Tensor | None, q_BTHK: Tensor, k_BEGK: Tensor
) -> Positions:
    """Return the inputs of a layer with more added to the scores, [H, T, E] or [B, H, T, E].

    Raises:
        ValueError: it has another shape.
    """
    if more_HTE is None:
        return at
    batch, num_queries, num_heads, _ = q_BTHK.shape
    shape = (num_heads, num_queries, k_BEGK.shape[1])
    if more_HTE.shape not in (shape, (batch, *shape)):
        found = tuple(more_HTE.shape)
        raise ValueError(f"scores returned the shape {found}, not {shape} or {(batch, *shape)}")
    if at.bias_HTE is None:
        return at._replace(bias_HTE=more_HTE)
    # A window may have dropped the first keys.
    return at._replace(bias_HTE=at.bias_HTE[..., -shape[2] :] + more_HTE)


def previous(x_BTD: Tensor, at: Positions, cache: LayerCache | None = None) -> Tensor:
    """Return x_{t-1}; the first token of a row, of a document or after padding gives its own x_t.

    Args:
        cache: stores the newest x for the next call. Call this before appending to it.
    """
    before_B1D = x_BTD[:, :1]
    if cache is not None:
        before_B1D = cache.states.get(NEWEST, before_B1D)
    previous_BTD = _one_later(x_BTD, before_B1D)

    if at.document_BT is not None:
        earlier_BT = _one_later(at.document_BT, at.document_BT[:, :1])
        goes_on_BT1 = (at.document_BT == earlier_BT)[..., None]
        previous_BTD = torch.where(goes_on_BT1, previous_BTD, x_BTD)

    if cache is not None:
        is_real_BT11 = cache.is_real(x_BTD.shape[1], before=1)
        if is_real_BT11 is not None:
            previous_BTD = torch.where(is_real_BT11[..., 0], previous_BTD, x_BTD)
        # A copy: a view would keep a whole prompt.
        cache.states[NEWEST] = x_BTD[:, -1:].detach().clone()
    return previous_BTD


def _one_later(x: Tensor, before: Tensor) -> Tensor:
    """Return [B, T, ...] shifted by one place, with `before` in front and the last dropped."""
    return torch.cat([before, x[:, :-1]], dim=1)
