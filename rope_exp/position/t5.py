"""T5's bias: a learned number for each head and bucket of offsets (Raffel et al. 2020)."""

import math

import torch
from torch import Tensor, nn

from rope_exp.position._encoding import ScoreBias, Sizes
from rope_exp.sections import PeConfig

T5_BUCKETS = 32
LARGEST_DISTANCE = 128  # all distances from this one on, and some before it, share the last bucket


class T5Bias(ScoreBias):
    """Adds a learned number to the scores, for each head and bucket of offsets."""

    def __init__(self, pe: PeConfig, sizes: Sizes) -> None:
        super().__init__(sizes)
        self.weight = nn.Parameter(torch.empty(T5_BUCKETS, sizes.num_attention_heads))

    def of_offsets(self, offset_TE: Tensor) -> Tensor:
        bucket_TE = t5_buckets(offset_TE, bidirectional=not self.sizes.causal)
        return self.weight[bucket_TE].permute(2, 0, 1)


make = T5Bias


def t5_buckets(offset: Tensor, *, bidirectional: bool = False) -> Tensor:
    """Return T5's bucket for each offset j - i from query i to key j.

    Distances below half of a side's buckets have one bucket each. Larger distances share buckets
    logarithmically, up to distance 128. Fractional distances are rounded down. If `bidirectional`,
    keys after the query have half of the buckets; otherwise none, as they are masked.
    """
    num_buckets = T5_BUCKETS // 2 if bidirectional else T5_BUCKETS
    side = torch.zeros_like(offset).long()
    distance = (-offset).clamp(min=0).long()
    if bidirectional:
        side = (offset > 0).long() * num_buckets
        distance = offset.abs().long()

    # log2 is exact at buckets that begin at a power of two.
    exact = num_buckets // 2
    octaves = torch.log2(distance.clamp(min=exact).double() / exact)
    shared = exact + octaves * (num_buckets - exact) / math.log2(LARGEST_DISTANCE / exact)
    shared = shared.long().clamp(max=num_buckets - 1)
    return side + torch.where(distance < exact, distance, shared)
