"""Token shift: keys and values mix in a learned share of the previous token."""

from collections.abc import Collection

import torch
from torch import Tensor, nn

from rope_exp.attention import LayerCache, Positions, SoftmaxAttention, linears
from rope_exp.sections import ModelConfig, SoftmaxConfig


class Layer(SoftmaxAttention):
    """Softmax attention whose keys and values project x_t + mu (x_{t-1} - x_t)."""

    def __init__(self, config: ModelConfig, attn: SoftmaxConfig, sites: Collection[str]) -> None:
        super().__init__(config, attn, sites)
        self.token_shift = nn.Parameter(torch.full((config.hidden_size,), 0.5))

    def project(self, x_BTD: Tensor, at: Positions, cache: LayerCache | None) -> tuple[Tensor, ...]:
        shifted_BTD = x_BTD + self.token_shift * (previous(x_BTD, at, cache) - x_BTD)
        return self.q_proj(x_BTD), *linears(shifted_BTD, self.k_proj, self.v_proj)


def previous(x_BTD: Tensor, at: Positions, cache: LayerCache | None = None) -> Tensor:
    """Return x_{t-1}; the first token of a row or of a document gives its own x_t."""
    before_B1D = x_BTD[:, :1]
    if cache is not None:
        before_B1D = cache.states.get("newest", before_B1D)
    previous_BTD = torch.cat([before_B1D, x_BTD[:, :-1]], dim=1)

    if at.document_BT is not None:
        earlier_BT = torch.cat([at.document_BT[:, :1], at.document_BT[:, :-1]], dim=1)
        goes_on_BT1 = (at.document_BT == earlier_BT)[..., None]
        previous_BTD = torch.where(goes_on_BT1, previous_BTD, x_BTD)

    if cache is not None:
        # A copy: a view would keep a whole prompt.
        cache.states["newest"] = x_BTD[:, -1:].detach().clone()
    return previous_BTD
