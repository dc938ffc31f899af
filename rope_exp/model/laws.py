"""Before a run trains, its own attention is measured in float64 against the laws it must obey.

Shift every position by c. The attention weights stay the same when both or neither of q and k
rotate; then the heads' outputs are unchanged if both or neither of v and o rotate (relative),
turned by R_c if v alone does, by R_{-c} if o alone does. If just one of q and k rotates, the
weights themselves change, and none of the three holds.

Whatever the kind, what is computed from a cache, a few tokens at a time, is what the whole gives;
and where a kind has other formulas for the same (absorbed, parallel), they give the same.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from rope_exp.config.kinds import SOFTMAX, AttnConfig
from rope_exp.config.sections import ModelConfig
from rope_exp.config.variants import PeConfig
from rope_exp.model.attention.base import Attention, Tables, turned
from rope_exp.model.attention.build import make_attention
from rope_exp.model.attention.state import StateAttention
from rope_exp.model.cache import LayerCache
from rope_exp.model.rope import angles, frequencies
from rope_exp.system.errors import LawError

SHIFT = 5
NUM_POSITIONS = 7
# A position. Float64 holds an angle of m radians to m 2^-53. Where a law holds, outputs deviate by
# some 4e-16 m, measured for heads of 2 to 512 features up to m = 2^24; where it does not, by 0.9.
TOLERANCE = 1e-11

# How many tokens at a time the cache is fed.
PARTS = [3, 1, 1, 2]
WINDOW = 4  # of a kind that has one
CHUNK = 3  # of a kind with a state

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
def certificate(model: ModelConfig, pe: PeConfig, attn: AttnConfig = SOFTMAX) -> dict[str, Any]:
    """Measure the laws of this run's attention on a small random instance in float64.

    Two query heads over one shared key/value head, of the run's own kind, head dimension, fraction,
    base and start.

    Returns:
        The expected and the measured answer to a shift, the shift, the largest deviation from each
        such law, and of each other formula from the first.
    Raises:
        LawError: a law does not hold; the run must not start.
    """
    tolerance = TOLERANCE * (100 + pe.start)
    attention, x_BTD = _instance(model, pe, attn)

    theta_F = frequencies(pe.num_features(attention.rotary_dim), pe.base, torch.float64)
    position_T = pe.start + torch.arange(NUM_POSITIONS)
    here = _tables(theta_F, position_T)
    here_BTHV = attention.heads(x_BTD, here, None)
    shifted_BTHV = attention.heads(x_BTD, _tables(theta_F, position_T + SHIFT), None)

    laws = {INVARIANT: here_BTHV}
    if {"v", "o"} <= set(attn.sites()):
        by_shift = _tables(theta_F, torch.full((NUM_POSITIONS,), SHIFT))
        laws[TURNED] = turned(here_BTHV, by_shift, attention.rotary_dim)
        laws[TURNED_BACK] = turned(here_BTHV, by_shift, attention.rotary_dim, inverse=True)
    # Relative to what is large: a linear kind may divide by next to nothing.
    size = float(here_BTHV.abs().max().clamp(min=1))
    errors = {law: _deviation(shifted_BTHV, other) / size for law, other in laws.items()}

    holding = [law for law, error in errors.items() if error < tolerance] or [NEITHER]
    expected = expected_class(pe.rotate)
    if holding != [expected]:
        raise LawError(
            f"the rotation of {pe.name} is {' and '.join(holding)}, and by the mathematics of "
            f"rotate={list(pe.rotate)} it must be {expected} (deviations {errors}); "
            "refusing to train"
        )

    others = {**attention.forms(x_BTD, here), "cached": _cached(attention, x_BTD, here)}
    formulas = {name: _deviation(other, here_BTHV) / size for name, other in others.items()}
    failing = [name for name, error in formulas.items() if not error < tolerance]
    if failing:
        raise LawError(
            f"attn.kind={attn.kind} computed as {' and '.join(failing)} is not what "
            f"training computes (deviations {formulas}); refusing to train"
        )
    return {
        "expected": expected,
        "measured": expected,
        "shift": SHIFT,
        "max_deviation": errors,
        "formulas": formulas,
    }


def _cached(attention: Attention, x_BTD: Tensor, tables: Tables) -> Tensor:
    """Return the outputs of tokens that come a few at a time."""
    cache = LayerCache(attention.config.window)
    parts = zip(*(torch.split(part, PARTS, dim=-2) for part in (x_BTD, *tables)), strict=True)
    outputs = [attention.heads(x, (cos_TF, sin_TF), cache) for x, cos_TF, sin_TF in parts]
    return torch.cat(outputs, dim=1)


def _tables(theta_F: Tensor, position_T: Tensor) -> Tables:
    angle_TF = angles(theta_F, position_T)
    return angle_TF.cos(), angle_TF.sin()


def _deviation(one: Tensor, other: Tensor) -> float:
    return float((one - other).abs().max())


def _instance(model: ModelConfig, pe: PeConfig, attn: AttnConfig) -> tuple[Attention, Tensor]:
    """Return a small attention and its input, both random."""
    # A kind with sizes of its own takes none from the model.
    features = max(model.features_per_head, 1)
    small = replace(
        model,
        hidden_size=2 * features,
        head_dim=features,
        num_attention_heads=2,
        num_key_value_heads=1,
        window=WINDOW if model.window else None,
    )
    generator = torch.Generator().manual_seed(0)

    attention = make_attention(small, attn.small(), pe.rotate).double()
    if isinstance(attention, StateAttention):
        # Several chunks, the last of them short.
        attention.chunk_size = CHUNK
    for parameter in attention.parameters():
        if parameter.ndim == 2:
            std = parameter.shape[1] ** -0.5
            torch.nn.init.normal_(parameter, std=std, generator=generator)

    shape = (1, NUM_POSITIONS, small.hidden_size)
    return attention, torch.randn(shape, generator=generator, dtype=torch.float64)
