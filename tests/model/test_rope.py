"""Tests of the laws of rotation in float64, on arbitrary vectors and positions."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.models import make_tables, normal
from torch import Tensor

from rope_exp.rope import FAR, angles, frequencies, rotate

BASE = 10000.0
DIMS = st.integers(1, 16).map(lambda half: 2 * half)
POSITIONS = st.integers(-4096, 4096)
SEEDS = st.integers(0, 2**32 - 1)


def at(x: Tensor, position: int, *, base: float = BASE, inverse: bool = False) -> Tensor:
    """Return R_m x for one position m."""
    return rotate(x, *make_tables(1, x.shape[-1], base=base, start=position), inverse=inverse)


def close(left: Tensor, right: Tensor) -> bool:
    return torch.allclose(left, right, rtol=0, atol=1e-9 * (1 + float(right.abs().max())))


def complex_reference(x: np.ndarray, position: int, base: float) -> np.ndarray:
    """Return half-split pairs, as complex numbers, times e^{i m theta}, independently of ours."""
    half = x.shape[-1] // 2
    theta = base ** (-2.0 * np.arange(half) / x.shape[-1])
    z = (x[..., :half] + 1j * x[..., half:]) * np.exp(1j * position * theta)
    return np.concatenate([z.real, z.imag], axis=-1)


@pytest.mark.parametrize(("base", "error"), [(1e4, 4e-7), (1e30, 3e-6)])
def test_float32_frequencies_are_as_close_as_the_docs_say(base: float, error: float) -> None:
    for dim in range(2, 258, 2):
        exact_F = base ** (-2.0 * np.arange(dim // 2) / dim)
        np.testing.assert_allclose(frequencies(dim, base).double().numpy(), exact_F, rtol=error)


@given(SEEDS, DIMS, POSITIONS, st.floats(2, 1e6))
def test_rotation_is_multiplication_by_e_to_the_i_m_theta(
    seed: int, dim: int, position: int, base: float
) -> None:
    x = normal(1, 1, 1, dim, seed=seed)
    for inverse, sign in ((False, 1), (True, -1)):
        expected = torch.from_numpy(complex_reference(x.numpy(), sign * position, base))
        assert close(at(x, position, base=base, inverse=inverse), expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_low_precision_inputs_are_rotated_in_float32(dtype: torch.dtype) -> None:
    x = normal(1, 1, 1, 64).to(dtype)
    turned = rotate(x, *make_tables(1, 64, base=BASE, start=4001, dtype=torch.float32))
    exact = at(x.double(), 4001)
    assert turned.dtype == dtype
    # Allow one rounding to the dtype (eps/2 of the maximum) and float32 angles at position 4001.
    bound = float(exact.abs().max()) * (torch.finfo(dtype).eps + 4001 * 2**-23)
    assert float((turned.double() - exact).abs().max()) <= bound


@pytest.mark.parametrize(
    ("first", "bound"),
    [(0, 2**-17), (1000, 2**-15), (FAR - 300, 2**-9), (FAR, 2**-21), (2**24 - 300, 2**-21)],
)
def test_float32_tables_hold_every_position(first: int, bound: float) -> None:
    """The reference is float64 angles of the same frequencies, on both sides of 0."""
    theta_F = frequencies(64, BASE)
    position_T = torch.arange(first, first + 300)
    for signed_T in (position_T, -position_T, position_T + 0.25):
        angle_TF = angles(theta_F, signed_T)
        exact_TF = signed_T.double()[:, None] * theta_F.double()
        assert angle_TF.dtype == torch.float32
        for function in (torch.cos, torch.sin):
            deviation = function(angle_TF).double() - function(exact_TF)
            assert float(deviation.abs().max()) <= bound


def test_positions_that_are_not_far_have_float32_products() -> None:
    """The products must match bit for bit, because recorded losses depend on them."""
    theta_F = frequencies(64, BASE)
    for position_T in (torch.arange(-FAR + 1, FAR), torch.arange(4 * FAR - 3) / 4):
        product_TF = position_T.float()[:, None] * theta_F
        assert torch.equal(angles(theta_F, position_T), product_TF)


def test_frequencies_learn_from_far_positions() -> None:
    """The gradient of an angle is its position, in float32, near and far."""
    theta_F = frequencies(8, BASE).requires_grad_()
    position_T = torch.tensor([3, FAR - 1, FAR, 2**24 - 1])
    angle_TF = angles(theta_F, position_T)
    for place, position in enumerate(position_T.tolist()):
        (gradient_F,) = torch.autograd.grad(angle_TF[place].sum(), theta_F, retain_graph=True)
        assert gradient_F.dtype == torch.float32
        assert gradient_F.tolist() == [position] * 4


@pytest.mark.parametrize(
    ("shape", "angle_shape"),
    [((1, 4, 2, 7), (4, 3)), ((1, 4, 2, 8), (3, 4)), ((1, 4, 2, 8), (4, 5))],
)
def test_odd_heads_and_mismatched_angles_are_refused(
    shape: tuple[int, ...], angle_shape: tuple[int, int]
) -> None:
    with pytest.raises(ValueError, match="cannot rotate"):
        rotate(torch.zeros(shape), torch.zeros(angle_shape), torch.zeros(angle_shape))


@pytest.mark.parametrize("dim", [-2, 0, 1, 7])
def test_frequencies_need_whole_pairs(dim: int) -> None:
    with pytest.raises(ValueError, match="even and at least 2"):
        frequencies(dim, BASE)
