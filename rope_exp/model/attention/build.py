"""Construction of the attention module that implements a config's kind."""

from collections.abc import Collection

from rope_exp.config.kinds import AttnConfig
from rope_exp.config.sections import ModelConfig
from rope_exp.model.attention.base import Attention
from rope_exp.model.attention.decay import DecayAttention
from rope_exp.model.attention.latent import LatentAttention
from rope_exp.model.attention.linear import LinearAttention
from rope_exp.model.attention.retention import RetentionAttention
from rope_exp.model.attention.shared import SharedAttention
from rope_exp.model.attention.softmax import SoftmaxAttention

# The module of each kind.
MODULES: dict[str, type[Attention]] = {
    "softmax": SoftmaxAttention,
    "linear": LinearAttention,
    "retention": RetentionAttention,
    "decay": DecayAttention,
    "latent": LatentAttention,
    "shared": SharedAttention,
}


def make_attention(config: ModelConfig, attn: AttnConfig, sites: Collection[str]) -> Attention:
    """Return the attention module of one layer.

    Args:
        sites: those of q, k, v, o that rotate.
    """
    return MODULES[attn.kind](config, attn, sites)
