"""Construction of the attention module that implements a config's kind."""

from collections.abc import Collection
from typing import assert_never

from rope_exp.config.kinds import (
    AttnConfig,
    DecayConfig,
    LatentConfig,
    LinearConfig,
    RetentionConfig,
    SharedConfig,
    SoftmaxConfig,
)
from rope_exp.config.sections import ModelConfig
from rope_exp.model.attention.base import Attention
from rope_exp.model.attention.decay import DecayAttention
from rope_exp.model.attention.latent import LatentAttention
from rope_exp.model.attention.linear import LinearAttention
from rope_exp.model.attention.retention import RetentionAttention
from rope_exp.model.attention.shared import SharedAttention
from rope_exp.model.attention.softmax import SoftmaxAttention


def make_attention(config: ModelConfig, attn: AttnConfig, sites: Collection[str]) -> Attention:
    """Return the attention module of one layer.

    Args:
        sites: those of q, k, v, o that rotate.
    """
    match attn:
        case SoftmaxConfig():
            return SoftmaxAttention(config, attn, sites)
        case LinearConfig():
            return LinearAttention(config, attn, sites)
        case RetentionConfig():
            return RetentionAttention(config, attn, sites)
        case DecayConfig():
            return DecayAttention(config, attn, sites)
        case LatentConfig():
            return LatentAttention(config, attn, sites)
        case SharedConfig():
            return SharedAttention(config, attn, sites)
    assert_never(attn)
