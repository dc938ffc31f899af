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

    They are in radians a position, on the CPU, with the order of operations of transformers' LLaMA,
    so that they match to the last bit. `dim` features rotate: an even number.
    """
    if dim < 2 or dim % 2:
        raise ValueError(f"the number of rotating features must be even and at least 2, not {dim}")

    exponent_F = torch.arange(0, dim, 2, dtype=torch.int64, device="cpu").to(dtype) / dim
    return 1.0 / (base**exponent_F)


def angles(theta_F: Tensor, position_T: Tensor) -> Tensor:
    """Return angle_TF[t, f] = position_t * theta_f in radians, in theta's dtype.

    A float32 product holds an angle of m radians to m 2^-24 at most, which is 1 radian at position
    2^24. So whole turns are removed from far angles in float64, before rounding. Positions are any
    real numbers; [B, T] of them give [B, T, F], and [G, F] frequencies of G heads give [T, G, F].
    """
    position_T = position_T[(..., *[None] * theta_F.ndim)]
    angle_TF = position_T.to(theta_F.dtype) * theta_F
    if theta_F.dtype != torch.float32:
        return angle_TF

    exact_TF = (position_T.double() * theta_F.double()).remainder(math.tau)
    return torch.where(position_T.abs() < FAR, angle_TF, exact_TF.float())


def rotate(x_BTHK: Tensor, cos_TF: Tensor, sin_TF: Tensor, *, inverse: bool = False) -> Tensor:
    """Rotate each feature pair (f, f + F) of position t by its angle, or back if `inverse`.

    Implements eqs. (2) and (5) of Su 2025: R_i x_i, and R_i^T o_i when `inverse`. Products are
    taken in the tables' dtype; the output has x's. Features past 2F are unchanged. Tables are of
    the angles t * theta_f, [T, F] or [B, T, F].
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
        rotated = [x1 * cos_T1F + x2 * sin_T1F, x2 * cos_T1F - x1 * sin_T1F]
    else:
        rotated = [x1 * cos_T1F - x2 * sin_T1F, x2 * cos_T1F + x1 * sin_T1F]
    return torch.cat([*(part.to(x_BTHK.dtype) for part in rotated), rest], dim=-1)
