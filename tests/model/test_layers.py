"""Tests of the precision of the rotation's tables."""

import torch
from support.models import (
    make_pe,
)

from rope_exp.decoder import Rotary


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
