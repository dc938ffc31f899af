"""Rotary position embedding: angles, and the project's one sign convention.

Position m rotates the feature pair (x_f, x_{f+F}) counter-clockwise by m * theta_f, where
theta_f = base^(-2f/K) and F = K/2 (half-split pairs, as LLaMA in transformers). The inverse rotates
by the same angle clockwise: (cos, -sin). Negating the cosine as well gives -R_m, which undoes
nothing. For Q and K only the difference of angles matters; for V and O the sign itself does, so it
is fixed here and nowhere else.

Shapes: B batch, T position, H heads (or G key/value heads), K head dimension, F frequencies.
"""

import math

import torch
from torch import Tensor

# From this position on, angles of float32 frequencies are computed in float64. Below it, float32
# products are off by at most 2^-9 of a radian, like a bfloat16 number near 1.
FAR = 2**16


def frequencies(dim: int, base: float, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return theta_f = base^(-2f/dim) for f = 0 .. dim/2 - 1 (Su 2021, before eq. 14).

    They are computed on the CPU, in the order of operations of transformers' LLaMA, so that they
    match it to the last bit.

    Args:
        dim: the number of a head's features that rotate, K if all do. It is even.
        base: b of the formula; 10000 in Su 2021. A larger base slows all frequencies but the first.
        dtype: the dtype in which the powers are taken, and which is returned.
    Returns:
        [dim/2] frequencies in radians a position, from the fastest (1) to the slowest.
    Raises:
        ValueError: `dim` is odd or less than 2.
    """
    if dim < 2 or dim % 2:
        raise ValueError(f"the number of rotating features must be even and at least 2, not {dim}")

    exponent_F = torch.arange(0, dim, 2, dtype=torch.int64, device="cpu").to(dtype) / dim
    return 1.0 / (base**exponent_F)


def angles(theta_F: Tensor, position_T: Tensor) -> Tensor:
    """Return angle_TF[t, f] = position_t * theta_f in radians, in theta's dtype.

    A float32 product holds an angle of m radians to m 2^-24 at most, which is 1 radian at position
    2^24. So whole turns are removed from far angles in float64, before rounding.

    Args:
        theta_F: frequencies in radians a position; or [G, F], the frequencies of G heads.
        position_T: positions, which may be any real numbers; or [B, T], if rows differ.
    Returns:
        The axes of the positions, then those of the frequencies: [T, F], [B, T, F] or [T, G, F].
    """
    position_T = position_T[(..., *[None] * theta_F.ndim)]
    angle_TF = position_T.to(theta_F.dtype) * theta_F
    if theta_F.dtype != torch.float32:
        return angle_TF

    exact_TF = (position_T.double() * theta_F.double()).remainder(math.tau)
    return torch.where(position_T.abs() < FAR, angle_TF, exact_TF.float())


def rotate(x_BTHK: Tensor, cos_TF: Tensor, sin_TF: Tensor, *, inverse: bool = False) -> Tensor:
    """Rotate each feature pair (f, f + F) of position t by its angle, or back if `inverse`.

    Implements eqs. (2) and (5) of Su 2025: R_i x_i, and R_i^T o_i when `inverse`.

    Args:
        x_BTHK: any floating dtype; the products are taken in the tables' dtype.
        cos_TF: of the angles t * theta_f, in float32; all layers and sites may share them. Or
            [B, T, F], if rows of the batch have different positions.
        sin_TF: of the same angles.
        inverse: rotate by the opposite angle.
    Returns:
        A tensor of x's shape and dtype. Features past 2F are passed through.
    Raises:
        ValueError: K is odd or less than 2F, or T differs between the arguments.
    """
    num_positions, num_pairs = cos_TF.shape[-2:]
    num_features = x_BTHK.shape[-1]
    num_left = num_features - 2 * num_pairs
    if num_features % 2 or num_left < 0 or x_BTHK.shape[-3] != num_positions:
        raise ValueError(
            f"cannot rotate x of {x_BTHK.shape[-3]} positions and {num_features} features "
            f"by tables of shape {tuple(cos_TF.shape)}"
        )

    cos_T1F = cos_TF.unsqueeze(-2)
    sin_T1F = sin_TF.unsqueeze(-2)

    # The gradient of one split is one concatenation; slices would sum padded tensors.
    x1, x2, rest = torch.split(x_BTHK, [num_pairs, num_pairs, num_left], dim=-1)
    x1 = x1.to(cos_TF.dtype)
    x2 = x2.to(cos_TF.dtype)

    # No table of -sin is made: to subtract a product is to add its negative, to the last bit.
    if inverse:
        y1 = x1 * cos_T1F + x2 * sin_T1F
        y2 = x2 * cos_T1F - x1 * sin_T1F
    else:
        y1 = x1 * cos_T1F - x2 * sin_T1F
        y2 = x2 * cos_T1F + x1 * sin_T1F
    return torch.cat([y1.to(x_BTHK.dtype), y2.to(x_BTHK.dtype), rest], dim=-1)
