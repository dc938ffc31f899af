"""Tests of kinds of attention against transformers' modules with the same weights."""

import math
import warnings
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.kinds import make_layer
from support.models import SIZES, make_positions, normal
from torch import Tensor, nn
from transformers import (
    DeepseekV3Config,
    DeepseekV4Config,
    Gemma4TextConfig,
    GptOssConfig,
    RoFormerConfig,
)
from transformers.models.deepseek_v3 import modeling_deepseek_v3 as v3
from transformers.models.deepseek_v4 import modeling_deepseek_v4 as v4
from transformers.models.gemma4 import modeling_gemma4 as gemma
from transformers.models.gpt_oss import modeling_gpt_oss as oss
from transformers.models.roformer import modeling_roformer as roformer

from rope_exp.attn.latent import Config as LatentConfig
from rope_exp.attn.shared import Config as SharedConfig
from rope_exp.sections import SoftmaxConfig

LENGTH = 11
WIDTH = SIZES.hidden_size
HEADS = SIZES.num_attention_heads
CAUSAL = torch.full((LENGTH, LENGTH), -math.inf, dtype=torch.float64).triu(1)[None, None]
# Transformers normalises, rotates or computes weights in float32.
TOLERANCE = 1e-5


def make_config(config_class: type, **keys: Any) -> Any:
    """Return a config of transformers, whose classes accept more keys than they declare."""
    return config_class(hidden_size=WIDTH, num_attention_heads=HEADS, **keys)


def doubled(tables: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Return the tables for both halves of the features and a batch, as in transformers."""
    cos, sin = (torch.cat([table, table], dim=-1)[None] for table in tables)
    return cos, sin


@pytest.mark.parametrize("q_rank", [None, 7])
@torch.no_grad()
def test_latent_is_deepseek_v3s(q_rank: int | None) -> None:
    attn = LatentConfig(kv_rank=10, q_rank=q_rank, nope_dim=6, rope_dim=4, value_dim=5)
    ours = make_layer(attn, ("q", "k")).double()
    config = make_config(
        DeepseekV3Config,
        num_key_value_heads=HEADS,
        q_lora_rank=q_rank,
        kv_lora_rank=10,
        qk_nope_head_dim=6,
        qk_rope_head_dim=4,
        v_head_dim=5,
        rope_interleave=False,
        attn_implementation="eager",
    )
    theirs = v3.DeepseekV3Attention(config, 0).double().eval()
    theirs.load_state_dict(ours.state_dict())

    x_BTD = normal(2, LENGTH, WIDTH, seed=1)
    at = make_positions(LENGTH, 4, start=5)
    expected = theirs(x_BTD, doubled(at.qk), CAUSAL)[0]
    assert float((ours(x_BTD, at) - expected).abs().max()) < TOLERANCE


def interleaved(nope_dim: int, rope_dim: int) -> list[int]:
    """Return the source of each feature in a layout with adjacent pairs: 2f comes from f."""
    half = rope_dim // 2
    pairs = [nope_dim + f + side * half for f in range(half) for side in (0, 1)]
    return [*range(nope_dim), *pairs]


def halves(nope_dim: int, rope_dim: int) -> list[int]:
    """Return the source of each feature if pairs are half a head apart, rotating pairs first."""
    left, turning = range(nope_dim), range(nope_dim, nope_dim + rope_dim)
    half, middle = rope_dim // 2, nope_dim // 2
    return [*turning[:half], *left[:middle], *turning[half:], *left[middle:]]


def rows(weight: Tensor, order: list[int]) -> Tensor:
    """Return a projection to heads with the features of each head in another order."""
    heads: Tensor = weight.unflatten(0, (-1, len(order)))
    return heads[:, order].flatten(0, 1)


@pytest.mark.parametrize("has_norms", [False, True], ids=["bare", "whole"])
@torch.no_grad()
def test_shared_s2_is_deepseek_v4s(has_norms: bool) -> None:
    """The window is as long as the text, and DeepSeek's pairs are adjacent.

    Its norm of the query latent changes nothing, because the input has an RMS of 1.
    """
    attn = SharedConfig(form="s2", groups=1, nope_dim=6, rope_dim=4, norm=has_norms, sink=has_norms)
    ours = make_layer(attn, ("q", "k", "v", "o")).double()
    config = make_config(
        DeepseekV4Config,
        rms_norm_eps=SIZES.rms_norm_eps,
        num_hidden_layers=1,
        head_dim=10,
        q_lora_rank=WIDTH,
        o_groups=1,
        o_lora_rank=WIDTH,
        sliding_window=LENGTH,
        layer_types=["sliding_attention"],
        partial_rotary_factor=0.4,
        attn_implementation="eager",
    )
    theirs = v4.DeepseekV4Attention(config, 0).double().eval()
    order = interleaved(6, 4)
    theirs.sinks.fill_(-math.inf)
    if ours.sink_H is None:
        for norm in ("q_b_norm", "kv_norm"):
            setattr(theirs, norm, nn.Identity())
    else:
        ours.sink_H.copy_(torch.tensor([-1.0, 0.0, 1.0, 3.0]))
        theirs.sinks.copy_(ours.sink_H)
        norm_K = ours.get_parameter("k_norm.weight")
        theirs.kv_norm.weight.copy_(rows(norm_K[:, None], order)[:, 0])
    theirs.q_a_proj.weight.copy_(torch.eye(WIDTH))
    theirs.q_b_proj.weight.copy_(rows(ours.q_proj.weight, order))
    theirs.kv_proj.weight.copy_(rows(ours.k_proj.weight, order))
    theirs.o_a_proj.weight.copy_(rows(ours.o_proj.weight.T, order).T)
    theirs.o_b_proj.weight.copy_(torch.eye(WIDTH))

    x_BTD = F.rms_norm(normal(2, LENGTH, WIDTH, seed=2), [WIDTH])
    at = make_positions(LENGTH, 4, start=5)
    cos, sin = at.qk
    position_BT = torch.arange(5, 5 + LENGTH)[None]
    expected, _ = theirs(x_BTD, {"main": (cos[None], sin[None])}, position_BT, CAUSAL)
    assert float((ours(x_BTD, at) - expected).abs().max()) < TOLERANCE


@torch.no_grad()
def test_shared_s2_with_values_unrotated_is_gemma_4s() -> None:
    """Gemma's scale is 1, so ours is folded into its queries. Its pairs are half a head apart."""
    attn = SharedConfig(form="s2", groups=2, nope_dim=6, rope_dim=4)
    ours = make_layer(attn, ("q", "k")).double()
    config = make_config(
        Gemma4TextConfig,
        num_hidden_layers=1,
        num_key_value_heads=2,
        num_global_key_value_heads=2,
        head_dim=10,
        global_head_dim=10,
        attention_k_eq_v=True,
        num_kv_shared_layers=0,
        layer_types=["full_attention"],
        attn_implementation="eager",
    )
    theirs = gemma.Gemma4TextAttention(config, 0).double().eval()
    for norm in ("q_norm", "k_norm", "v_norm"):
        setattr(theirs, norm, nn.Identity())

    order = halves(6, 4)
    theirs.q_proj.weight.copy_(rows(ours.q_proj.weight, order) * 10**-0.5)
    theirs.k_proj.weight.copy_(rows(ours.k_proj.weight, order))
    theirs.o_proj.weight.copy_(rows(ours.o_proj.weight.T, order).T)

    x_BTD = normal(2, LENGTH, WIDTH, seed=3)
    at = make_positions(LENGTH, 4, start=5)
    cos_TF, sin_TF = at.qk
    # Features that do not rotate have an angle of 0.
    still = torch.zeros(LENGTH, 3, dtype=torch.float64)
    tables = (torch.cat([cos_TF, still + 1], dim=-1), torch.cat([sin_TF, still], dim=-1))
    expected, _ = theirs(x_BTD, doubled(tables), CAUSAL, {})
    assert float((ours(x_BTD, at) - expected).abs().max()) < TOLERANCE


@pytest.mark.parametrize("causal", [True, False])
@torch.no_grad()
def test_qkv_is_roformers_with_rotary_value(causal: bool) -> None:
    """RoFormer's pairs are adjacent, and its output is not rotated back. It trained unmasked."""
    ours = make_layer(SoftmaxConfig(), ("q", "k", "v")).double()
    ours.causal = causal
    dim = WIDTH // HEADS
    config = make_config(
        RoFormerConfig,
        rotary_value=True,
        attention_probs_dropout_prob=0.0,
        max_position_embeddings=LENGTH,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = roformer.RoFormerSelfAttention(config, 0).double().eval()

    order = interleaved(0, dim)
    for name, projection, count in (
        ("query", ours.q_proj, 1),
        ("key", ours.k_proj, 2),
        ("value", ours.v_proj, 2),
    ):
        # RoFormer has a key and a value for each query head.
        of_heads = projection.weight.unflatten(0, (-1, dim)).repeat_interleave(count, dim=0)
        getattr(theirs, name).weight.copy_(rows(of_heads.flatten(0, 1), order))
        getattr(theirs, name).bias.zero_()

    x_BTD = normal(2, LENGTH, WIDTH, seed=4)
    at = make_positions(LENGTH, dim)
    cos_TF, sin_TF = at.qk
    sinusoidal = torch.cat([sin_TF, cos_TF], dim=-1)[None, None]
    expected = theirs(x_BTD, CAUSAL if causal else None, sinusoidal)[0]

    mine = ours.heads(x_BTD, at, None)[..., order].flatten(2)
    assert float((mine - expected).abs().max()) < 1e-12


@torch.no_grad()
def test_a_sink_is_gpt_oss_s() -> None:
    attn = SoftmaxConfig(sink=True)
    ours = make_layer(attn, ("q", "k")).double()
    assert ours.sink_H is not None
    ours.sink_H.copy_(torch.tensor([-1.0, 0.0, 1.0, 3.0]))
    config = make_config(
        GptOssConfig,
        num_key_value_heads=SIZES.num_key_value_heads,
        head_dim=SIZES.features_per_head,
        attention_bias=False,
        attn_implementation="eager",
    )
    theirs = oss.GptOssAttention(config, 0).double().eval()
    state = ours.state_dict()
    theirs.load_state_dict(state | {"sinks": state.pop("sink_H")})

    x_BTD = normal(2, LENGTH, WIDTH)
    at = make_positions(LENGTH, SIZES.features_per_head)
    expected = theirs(x_BTD, [table[None] for table in at.qk], CAUSAL)[0]
    torch.testing.assert_close(ours(x_BTD, at), expected, rtol=0, atol=TOLERANCE)
