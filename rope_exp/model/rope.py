"""Rotary position embedding: angles, and the one sign convention of the project.

Position m turns the feature pair (x_f, x_{f+F}) counter-clockwise by m * theta_f, theta_f = base^(-2f/K), F = K/2
(half-split pairs, as LLaMA in transformers). The inverse turns by the same angle clockwise: (cos, -sin). Negating the
cosine as well is not a rotation and changes norms. For Q and K only the difference of angles matters; for V and O the
sign itself does, which is why it is fixed here and nowhere else.

Shapes: B batch, T position, H heads (or G key/value heads), K head dimension, F = K/2 frequencies.
"""

import torch
from torch import Tensor


def frequencies(dim: int, base: float, dtype: torch.dtype = torch.float32) -> Tensor:
    """theta_f = base^(-2f/dim) for f = 0 .. dim/2 - 1 (seed 001, section on long-range decay).

    Args:
        dim: number of features that rotate, even.
        base: 10000 in the source.
        dtype: float32 in training; float64 where a law is checked. bfloat16 cannot hold positions above 256.
    Returns:
        theta_F in radians a position. The order of operations is that of transformers' LLaMA, to the last bit.
    Raises:
        ValueError: `dim` is odd or below 2.
    """
    if dim < 2 or dim % 2:
        raise ValueError(f"the number of rotating features must be even and at least 2, not {dim}")
    return 1.0 / (base ** (torch.arange(0, dim, 2, dtype=torch.int64).to(dtype) / dim))


def angles(theta_F: Tensor, num_positions: int, start: int = 0) -> Tensor:
    """angle_TF[t, f] = (start + t) * theta_f in radians, in theta's dtype."""
    position_T = torch.arange(start, start + num_positions, device=theta_F.device).to(theta_F.dtype)
    return position_T[:, None] * theta_F[None, :]


def rotate(x_BTHK: Tensor, angle_TF: Tensor, *, inverse: bool = False) -> Tensor:
    """Rotate each feature pair (f, f + K/2) of position t by angle_TF[t, f], or back if `inverse`.

    Implements eq. (4) of seed 000 (R_i x_i, and R_i^T x_i when `inverse`).

    Args:
        x_BTHK: any floating dtype; the products are taken in the angles' dtype (float32 in training).
        angle_TF: radians, F = K/2.
    Returns:
        A tensor of x's shape and dtype.
    Raises:
        ValueError: K is odd, or T or F differs between the arguments.
    """
    num_positions, num_features = x_BTHK.shape[-3], x_BTHK.shape[-1]
    if num_features % 2 or angle_TF.shape != (num_positions, num_features // 2):
        raise ValueError(
            f"cannot rotate x of {num_positions} positions and {num_features} features "
            f"by angles of shape {tuple(angle_TF.shape)}"
        )
    return turn(x_BTHK, angle_TF.cos(), angle_TF.sin(), inverse=inverse)


def turn(x_BTHK: Tensor, cos_TF: Tensor, sin_TF: Tensor, *, inverse: bool = False) -> Tensor:
    """`rotate` by angles whose cosine and sine are known; features past 2F are passed through.

    All layers and sites of a model share one pair of tables, so the model takes cosines once a forward pass.
    """
    num_pairs = cos_TF.shape[-1]
    cos_T1F, sin_T1F = cos_TF[:, None, :], sin_TF[:, None, :]
    if inverse:
        sin_T1F = -sin_T1F
    # One split, whose gradient is one concatenation; that of slices is a sum of padded tensors.
    x1, x2, rest = torch.split(
        x_BTHK, [num_pairs, num_pairs, x_BTHK.shape[-1] - 2 * num_pairs], dim=-1
    )
    x1, x2 = x1.to(cos_TF.dtype), x2.to(cos_TF.dtype)
    turned = [x1 * cos_T1F - x2 * sin_T1F, x2 * cos_T1F + x1 * sin_T1F]
    return torch.cat([*(part.to(x_BTHK.dtype) for part in turned), rest], dim=-1)
