"""Forgetting attention (FoX; Lin et al. 2025): each token lowers the scores of all keys before it.

s_ij += sum over l in (j, i] of log sigmoid(w_h x_l + b_h), with a gate for each head h.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rope_exp import Position, Sizes


class Forget(Position):
    """A gate for each token and head; at first each keeps sigmoid(5) = 0.993."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__(sizes)
        heads = sizes.num_attention_heads
        self.weight = nn.Parameter(torch.empty(heads, sizes.hidden_size))
        self.bias = nn.Parameter(torch.full((heads,), 5.0))

    def of_tokens(self, x_BTD: Tensor, position_T: Tensor) -> dict[str, Tensor]:
        gate_BTH = F.linear(x_BTD, self.weight.to(x_BTD.dtype)).to(self.bias.dtype) + self.bias
        return {"log_f_BTH": F.logsigmoid(gate_BTH)}

    def scores(self, kept: dict[str, Tensor], num_queries: int) -> Tensor:
        sum_BHE = kept["log_f_BTH"].cumsum(dim=1).transpose(1, 2)
        # A key after its query is as far as one before it, where attention looks both ways.
        return -(sum_BHE[:, :, -num_queries:, None] - sum_BHE[:, :, None]).abs()
