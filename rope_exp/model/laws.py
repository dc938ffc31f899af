"""Before a run trains, its own rotation is checked in float64 against the class that its subset belongs to.

Shift every position by c. The attention weights stay the same when both or neither of q and k rotate; then the heads'
outputs are unchanged if both or neither of v and o rotate (relative), turned by R_c if v alone does, by R_{-c} if o
alone does. If just one of q and k rotates, the weights themselves change, and none of the three holds.
"""

import math
from typing import Any

import torch
from torch import Tensor

from rope_exp.config.run import ModelConfig, PeConfig
from rope_exp.model.decoder import Attention
from rope_exp.model.rope import angles, frequencies, turn

SHIFT, NUM_POSITIONS, TOLERANCE = 5, 7, 1e-9


def expected_class(rotate: tuple[str, ...]) -> str:
    """`invariant`, `turned by R_c`, `turned by R_-c` or `neither`, by the mathematics (DESIGN, section 5)."""
    q, k, v, o = (site in rotate for site in "qkvo")
    if q != k:
        return "neither"
    if v == o:
        return "invariant"
    return "turned by R_c" if v else "turned by R_-c"


def certificate(model: ModelConfig, pe: PeConfig) -> dict[str, Any]:
    """Measure the class of this variant's attention on a small random instance in float64.

    Two query heads over one shared key/value head, of the run's own head dimension, fraction, base and start.

    Returns:
        The expected and the measured class, the shift, and the largest deviation from each of the three laws.
    Raises:
        AssertionError: the measured class is not the expected one; the run must not start.
    """
    small = ModelConfig("certificate", 2 * model.head_dim, 4, 1, 2, 1, model.rms_norm_eps, False)
    generator = torch.Generator().manual_seed(0)
    attention = Attention(small, pe.rotate).double()
    for projection in (attention.q_proj, attention.k_proj, attention.v_proj):
        torch.nn.init.normal_(projection.weight, std=small.hidden_size**-0.5, generator=generator)
    torch.nn.init.eye_(attention.o_proj.weight)  # the heads' outputs themselves, before any mixing
    x_BTD = torch.randn(
        1, NUM_POSITIONS, small.hidden_size, generator=generator, dtype=torch.float64
    )
    theta_F = frequencies(pe.num_features(model.head_dim), pe.base, torch.float64)

    def outputs(start: int) -> Tensor:
        angle_TF = angles(theta_F, NUM_POSITIONS, start)
        with torch.no_grad():
            out: Tensor = attention(x_BTD, (angle_TF.cos(), angle_TF.sin()))
        return out.view(1, NUM_POSITIONS, 2, model.head_dim)

    here_BTHK, shifted_BTHK = outputs(pe.start), outputs(pe.start + SHIFT)
    shift_TF = (SHIFT * theta_F).expand(NUM_POSITIONS, -1)
    laws = {
        "invariant": here_BTHK,
        "turned by R_c": turn(here_BTHK, shift_TF.cos(), shift_TF.sin()),
        "turned by R_-c": turn(here_BTHK, shift_TF.cos(), shift_TF.sin(), inverse=True),
    }
    errors = {law: float((shifted_BTHK - predicted).abs().max()) for law, predicted in laws.items()}
    with torch.no_grad():
        tolerance = TOLERANCE + _rounding(attention, x_BTD, pe.start)
    holding = [law for law, error in errors.items() if error < tolerance]
    measured = holding[0] if holding else "neither"
    expected = expected_class(pe.rotate)
    assert (measured, len(holding)) == (expected, expected != "neither"), (
        f"the rotation of {pe.name} is {measured}, and by the mathematics of rotate={list(pe.rotate)} it must be "
        f"{expected} (deviations {errors}); refusing to train"
    )
    return {"expected": expected, "measured": measured, "shift": SHIFT, "max_deviation": errors}


def _rounding(attention: Attention, x_BTD: Tensor, start: int) -> float:
    """How far the outputs may deviate because float64 holds an angle only to a part in 2^53.

    Equation: an angle is at most m = start + c + T radians, and off by d = m 2^-53. Each of q, k, v, o turns once here
    and once shifted, so a score |q||k|/sqrt(K) moves by 4d of it at most, the weights by twice that in sum, and the
    output by that share of |v|, and by 4d |v| through v and o themselves: (8 |q||k|/sqrt(K) + 4) |v| d.
    """
    projections = (attention.q_proj, attention.k_proj, attention.v_proj)
    q, k, v = (
        float(project(x_BTD).unflatten(-1, (-1, attention.head_dim)).norm(dim=-1).max())
        for project in projections
    )
    angle_error = (start + SHIFT + NUM_POSITIONS) * 2.0**-53
    return (8 * q * k / math.sqrt(attention.head_dim) + 4) * v * angle_error
