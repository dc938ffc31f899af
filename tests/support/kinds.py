"""Small configs of every kind of attention."""

from collections.abc import Collection
from typing import Any

import pytest
import torch

from rope_exp.attention import Attention, make_attention
from rope_exp.attn.decay import Config as DecayConfig
from rope_exp.attn.latent import Config as LatentConfig
from rope_exp.attn.linear import Config as LinearConfig
from rope_exp.attn.retention import Config as RetentionConfig
from rope_exp.attn.shared import Config as SharedConfig
from rope_exp.sections import AttentionConfig, ModelConfig, SoftmaxConfig
from support.models import SIZES, SUBSETS, make_sizes

_LATENT: dict[str, Any] = {"kv_rank": 10, "nope_dim": 6, "rope_dim": 4, "value_dim": 5}
_SHARED: dict[str, Any] = {"groups": 2, "nope_dim": 6, "rope_dim": 4}

KINDS: list[AttentionConfig] = [
    SoftmaxConfig(),
    SoftmaxConfig(sink=True),
    LinearConfig(),
    LinearConfig(form="both"),
    LinearConfig(form="one_plus_cos"),
    RetentionConfig(),
    DecayConfig(),
    DecayConfig(gamma="learned", normalise="sqrt"),
    DecayConfig(gamma=0.8),
    LatentConfig(**_LATENT),
    LatentConfig(**_LATENT, q_rank=7),
    LatentConfig(**_LATENT, value_rope=True),
    SharedConfig(form="s1", **_SHARED),
    SharedConfig(form="s2", **_SHARED),
    SharedConfig(form="s2", **_SHARED, norm=True, sink=True),
    SharedConfig(form="s3", **_SHARED),
]

# With what softmax takes besides, as the arguments of tests that hold for every kind.
_OF_SOFTMAX = [
    pytest.param(SoftmaxConfig(), {"token_shift": True}, id="token shift"),
    pytest.param(SoftmaxConfig(), {"qk_norm": True}, id="norms"),
]
CASES = [*(pytest.param(attn, {}, id=str(attn)) for attn in KINDS), *_OF_SOFTMAX]
WITH_KEYS = [attn for attn in KINDS if attn.keeps_keys]
CASES_WITH_KEYS = [*(pytest.param(attn, {}, id=str(attn)) for attn in WITH_KEYS), *_OF_SOFTMAX]


def sizes_for(attn: AttentionConfig, **changes: Any) -> ModelConfig:
    """Return sizes in which two query heads share a key/value head, if the kind allows it."""
    return make_sizes(num_key_value_heads=2 if attn.takes_heads else 4, **changes)


def all_sites(attn: AttentionConfig) -> tuple[str, ...]:
    return tuple(site for site in "qkvo" if site in attn.sites())


def subsets_of(attn: AttentionConfig) -> list[tuple[str, ...]]:
    return [sites for sites in SUBSETS if set(sites) <= set(attn.sites())]


def make_layer(
    attn: AttentionConfig, sites: Collection[str], seed: int = 0, sizes: ModelConfig = SIZES
) -> Attention:
    """Return a layer whose weights are scaled so that its softmax is neither flat nor sharp."""
    layer = make_attention(sizes, attn, sites)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in layer.named_parameters():
            if parameter.ndim == 2:
                std = parameter.shape[1] ** -0.5
                torch.nn.init.normal_(parameter, std=std, generator=generator)
            elif name == "token_shift":
                parameter.copy_(torch.linspace(-0.3, 1.2, len(parameter)))
            elif name.endswith("norm.weight"):
                torch.nn.init.uniform_(parameter, 0.5, 1.5, generator=generator)
    return layer
