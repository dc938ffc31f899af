"""A learned row for each position, added to the embeddings, as in GPT-2."""

import torch
from torch import Tensor, nn

from rope_exp.position._encoding import Position, Sizes
from rope_exp.sections import PeConfig


class LearnedRows(Position):
    """Adds the row of its position to each embedding."""

    relative = False

    def __init__(self, pe: PeConfig, sizes: Sizes) -> None:
        super().__init__(sizes)
        self.limit = sizes.num_positions
        self.weight = nn.Parameter(torch.empty(sizes.num_positions, sizes.hidden_size))

    def embed(self, x_BTD: Tensor, position_T: Tensor) -> Tensor:
        return x_BTD + self.weight[position_T]


make = LearnedRows
