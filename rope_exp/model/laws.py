"""Before a run trains, its own rotation is measured in float64 against the law that it must obey.

Shift every position by c. The attention weights stay the same when both or neither of q and k
rotate; then the heads' outputs are unchanged if both or neither of v and o rotate (relative),
turned by R_c if v alone does, by R_{-c} if o alone does. If just one of q and k rotates, the
weights themselves change, and none of the three holds.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from rope_exp.config.sections import ModelConfig
from rope_exp.config.variants import PeConfig
from rope_exp.model.layers import Attention
from rope_exp.model.rope import angles, frequencies, rotate
from rope_exp.system.errors import LawError

SHIFT = 5
NUM_POSITIONS = 7
# A position. Float64 holds an angle of m radians to m 2^-53. Where a law holds, outputs deviate by
# some 4e-16 m, measured for heads of 2 to 512 features up to m = 2^24; where it does not, by 0.9.
TOLERANCE = 1e-11

INVARIANT = "invariant"
TURNED = "turned by R_c"
TURNED_BACK = "turned by R_-c"
NEITHER = "neither"


def expected_class(rotate: tuple[str, ...]) -> str:
    """Return how a subset's outputs answer a shift, by the mathematics above."""
    q, k, v, o = (site in rotate for site in "qkvo")
    if q != k:
        return NEITHER
    if v == o:
        return INVARIANT
    return TURNED if v else TURNED_BACK


@torch.no_grad()
def certificate(model: ModelConfig, pe: PeConfig) -> dict[str, Any]:
    """Measure the class of this variant's attention on a small random instance in float64.

    Two query heads over one shared key/value head, of the run's own head dimension, fraction,
    base and start.

    Returns:
        The expected and the measured class, the shift, and the largest deviation from each law.
    Raises:
        LawError: the measured class is not the expected one; the run must not start.
    """
    attention, x_BTD = _instance(model, pe)
    theta_F = frequencies(pe.num_features(model.head_dim), pe.base, torch.float64)

    def outputs(start: int) -> Tensor:
        angle_TF = angles(theta_F, NUM_POSITIONS, start)
        out: Tensor = attention(x_BTD, (angle_TF.cos(), angle_TF.sin()))
        return out.view(1, NUM_POSITIONS, 2, model.head_dim)

    here_BTHK = outputs(pe.start)
    shifted_BTHK = outputs(pe.start + SHIFT)

    shift_TF = (SHIFT * theta_F).expand(NUM_POSITIONS, -1)
    tables = (shift_TF.cos(), shift_TF.sin())
    laws = {
        INVARIANT: here_BTHK,
        TURNED: rotate(here_BTHK, *tables),
        TURNED_BACK: rotate(here_BTHK, *tables, inverse=True),
    }
    errors = {law: float((shifted_BTHK - predicted).abs().max()) for law, predicted in laws.items()}

    tolerance = TOLERANCE * (100 + pe.start)
    holding = [law for law, error in errors.items() if error < tolerance] or [NEITHER]
    expected = expected_class(pe.rotate)
    if holding != [expected]:
        raise LawError(
            f"the rotation of {pe.name} is {' and '.join(holding)}, and by the mathematics of "
            f"rotate={list(pe.rotate)} it must be {expected} (deviations {errors}); "
            "refusing to train"
        )
    return {"expected": expected, "measured": expected, "shift": SHIFT, "max_deviation": errors}


def _instance(model: ModelConfig, pe: PeConfig) -> tuple[Attention, Tensor]:
    """Return a small attention and its input, both random; its heads' outputs are not mixed."""
    small = replace(
        model, hidden_size=2 * model.head_dim, num_attention_heads=2, num_key_value_heads=1
    )
    generator = torch.Generator().manual_seed(0)

    attention = Attention(small, pe.rotate).double()
    for projection in (attention.q_proj, attention.k_proj, attention.v_proj):
        torch.nn.init.normal_(projection.weight, std=small.hidden_size**-0.5, generator=generator)
    torch.nn.init.eye_(attention.o_proj.weight)

    shape = (1, NUM_POSITIONS, small.hidden_size)
    return attention, torch.randn(shape, generator=generator, dtype=torch.float64)
