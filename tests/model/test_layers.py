"""Tests of attention with any subset of sites rotated, against explicit sums in float64."""

import itertools
import math
from collections.abc import Collection

import torch
from support.models import (
    SIZES,
    make_decoder,
    make_pe,
    make_positions,
    normal,
    rotation_matrix,
    tokens,
)
from torch import Tensor

from rope_exp.attention import SoftmaxAttention
from rope_exp.decoder import Rotary
from rope_exp.sections import SoftmaxConfig


def attention_of(sites: Collection[str]) -> SoftmaxAttention:
    return SoftmaxAttention(SIZES, SoftmaxConfig(), sites)


def heads_of(attention: SoftmaxAttention, x_TD: Tensor) -> list[Tensor]:
    """Return q, k and v as [T, heads, K], not rotated."""
    projections = (attention.q_proj, attention.k_proj, attention.v_proj)
    return [(x_TD @ p.weight.T).view(len(x_TD), -1, attention.head_dim) for p in projections]


@torch.no_grad()
def test_vo_equals_the_sum_over_relative_rotations() -> None:
    """o_i = sum_j a_ij R_{j-i} v_j (Su 2025): the identity that makes VO-RoPE relative."""
    attention = attention_of(("v", "o")).double()
    x_TD = normal(8, 32, seed=2)
    ours = attention(x_TD[None], make_positions(8, 8))[0]

    q, k, v = heads_of(attention, x_TD)
    output = torch.zeros(8, 4, 8, dtype=torch.float64)
    for head, i in itertools.product(range(4), range(8)):
        a_i = torch.softmax(k[: i + 1, head // 2] @ q[i, head] / math.sqrt(8), dim=0)
        turned = [rotation_matrix(j - i, 8) @ v[j, head // 2] for j in range(i + 1)]
        output[i, head] = a_i @ torch.stack(turned)

    expected = output.flatten(1) @ attention.o_proj.weight.T
    assert float((ours - expected).abs().max()) < 1e-12


@torch.no_grad()
def test_vo_with_identity_attention_is_nope() -> None:
    """A single token attends only to itself, and R_m^T R_m = I at any position m."""
    x_BTD = normal(1, 1, 32)
    at = make_positions(1, 8, start=1234)
    rotated = attention_of(("v", "o")).double()
    plain = attention_of(()).double()
    rotated.load_state_dict(plain.state_dict())

    assert torch.allclose(rotated(x_BTD, at), plain(x_BTD, at), rtol=0, atol=1e-12)


# -- the tables' precision -------------------------------------------------------------------------


def test_tables_in_bf16_hold_no_position_above_256() -> None:
    """bfloat16 has 8 significant bits: 257 rounds to 256, so the two positions share a rotation,
    while every position up to 256 has its own rounded angle.
    """
    [at] = Rotary(8, make_pe("q", "k", precision="bf16"))(torch.arange(300))
    cos_TF, sin_TF = at.qk
    assert (cos_TF.dtype, sin_TF.dtype) == (torch.bfloat16, torch.bfloat16)
    assert torch.equal(cos_TF[257], cos_TF[256])
    assert torch.equal(sin_TF[257], sin_TF[256])

    theta_F = torch.tensor([100.0 ** (-2 * f / 8) for f in range(4)]).bfloat16()
    for position in (0, 1, 7, 100, 255, 256):
        angle_F = (position * theta_F.double()).bfloat16()
        assert torch.equal(cos_TF[position], angle_F.double().cos().bfloat16())
        assert torch.equal(sin_TF[position], angle_F.double().sin().bfloat16())


def test_tables_are_float32_unless_the_model_is_wider() -> None:
    """A float64 model, which measures laws and checks exports, has its tables in float64."""
    rotary = Rotary(8, make_pe("q", "k"))
    assert rotary(torch.arange(3))[0].qk[0].dtype == torch.float32
    assert rotary.double()(torch.arange(3))[0].qk[0].dtype == torch.float64


@torch.no_grad()
def test_a_rotation_in_bf16_is_nearly_the_same_model() -> None:
    """With the same weights, logits differ by what an angle's rounding of 2^-9 allows; without
    rotation they are equal.
    """
    ids_BT = tokens(2, 30)
    for rotate in ((), ("q", "k"), tuple("qkvo")):
        exact = make_decoder(*rotate)(ids_BT)
        rounded = make_decoder(*rotate, precision="bf16")(ids_BT)
        assert rounded.dtype == torch.float32
        difference = float((exact - rounded).abs().max() / exact.abs().max())
        assert (difference == 0) == (rotate == ())
        assert difference < 0.05
