"""Laws of attention under a shift of positions, measured in float64 before a run trains.

Shift every position by c. The attention weights stay the same if both or neither of q and k
rotate; then the heads' outputs are unchanged if both or neither of v and o rotate (relative),
rotated by R_c if only v does, and by R_{-c} if only o does. If just one of q and k rotates, the
weights themselves change, and none of the three holds. The logits of a whole decoder are unchanged
if the heads' outputs are, and no position is added to the embeddings; otherwise they change.

For every kind, decoding from a cache, a few tokens at a time, gives the outputs of the whole
sequence; and a kind's other formulas (absorbed, parallel) give the same outputs.
"""

import functools
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from rope_exp.attention import LayerCache, make_attention, rotate_last
from rope_exp.config import Architecture
from rope_exp.custom_code import refuse_code_errors
from rope_exp.decoder import CUSTOM, Decoder
from rope_exp.errors import ConfigError, LawError
from rope_exp.rotary import Rotary
from rope_exp.sections import SOFTMAX, AttentionConfig, ModelConfig, PeConfig

SHIFT = 5
NUM_POSITIONS = 7
# Tolerance per position. Float64 holds an angle of m radians to m 2^-53. If a law holds, outputs
# deviate by about 4e-16 m, measured for heads of 2 to 512 features up to m = 2^24; if not, by 0.9.
TOLERANCE = 1e-11
# For a user's class, which may compute a part in float32.
CUSTOM_TOLERANCE = 1e-5
CUSTOM_LAYERS = 4

# Numbers of tokens that are fed to the cache at a time.
PARTS = [3, 1, 1, 2]
MOVED = 1.25  # factor on learned frequencies of v and o, which training moves apart
WINDOW = 4  # for models with a window
CHUNK = 3  # for kinds with a state: several chunks, the last of them short
VOCAB = 5

INVARIANT = "invariant"
ROTATED = "turned by R_c"
ROTATED_BACK = "turned by R_-c"
NEITHER = "neither"


def expected_class(rotate: tuple[str, ...]) -> str:
    """Return how the outputs respond to a shift if these sites rotate, by the laws above."""
    q, k, v, o = (site in rotate for site in "qkvo")
    if q != k:
        return NEITHER
    if v == o:
        return INVARIANT
    return ROTATED if v else ROTATED_BACK


@torch.no_grad()
def certificate(
    model: ModelConfig, pe: PeConfig, attn: AttentionConfig = SOFTMAX, *, causal: bool = True
) -> dict[str, Any]:
    """Measure the laws of this run's attention on a small random instance in float64.

    It has two query heads over one shared key/value head, and the run's own kind, head dimension,
    fractions, bases and start.

    Args:
        model: the sizes of the run's model, of which the head dimension and a window are kept.
        pe: the run's variant, with all sets of sites that rotate in a layer.
        attn: the run's kind of attention.
        causal: whether the run's queries attend to no later key.
    Returns:
        Plain values for env.json: the response of one layer to a shift and the deviations from
        each law, the same of each other set of sites that rotates in a layer ("of_layers"), and the
        response of a decoder's logits ("decoder").
    Raises:
        LawError: a law does not hold.
        ConfigError: a law does not hold under a user's class (pe.code), or the class fails.
    """
    # A kind with its own sizes takes none from the model.
    features = max(model.features_per_head, 1)
    small = replace(
        model,
        hidden_size=2 * features,
        head_dim=features,
        num_attention_heads=2,
        num_key_value_heads=1,
        num_hidden_layers=1,
        intermediate_size=1,
        window=WINDOW if model.window else None,
        match_params=None,
    )
    checked = _measured(small, pe, attn, pe.rotate, causal)
    if pe.code is None:
        checked["decoder"] = _measured_decoder(small, pe, attn, causal)
    else:
        # A user's class may depend on the heads and on the layer.
        layers = min(model.num_hidden_layers, CUSTOM_LAYERS)
        whole = replace(model, num_hidden_layers=layers, intermediate_size=1, window_layers=None)
        with refuse_code_errors(pe.code):
            checked["decoder"] = _measured_decoder(whole, pe, attn, causal)

    others = {pe.sites_of(layer) for layer in range(model.num_hidden_layers)} - {pe.rotate}
    if others:
        of_layers = {}
        for sites in sorted(others):
            of_layers["".join(sites)] = _measured(small, pe, attn, sites, causal)
        checked["of_layers"] = of_layers
    return checked


@functools.cache
def measured_once(
    model: ModelConfig, pe: PeConfig, attn: AttentionConfig, *, causal: bool
) -> Mapping[str, Any]:
    """Return the certificate of a variant, measured once a process; not to be changed.

    Args:
        model: the sizes of the run's model.
        pe: the run's variant.
        attn: the run's kind of attention.
        causal: whether the run's queries attend to no later key.
    """
    return certificate(model, pe, attn, causal=causal)


def _measured(
    small: ModelConfig, pe: PeConfig, attn: AttentionConfig, sites: tuple[str, ...], causal: bool
) -> dict[str, Any]:
    """Measure the laws of one attention layer in which these sites rotate."""
    tolerance = TOLERANCE * (100 + pe.start)
    attention: Any = make_attention(small, attn.small(), sites).double()
    attention.causal = causal
    attention.chunk_size = CHUNK
    _draw(attention)
    generator = torch.Generator().manual_seed(1)
    shape = (1, NUM_POSITIONS, small.hidden_size)
    x_BTD = torch.randn(shape, generator=generator, dtype=torch.float64)

    rotary = Rotary(attention.rotary_dim, replace(pe, precision="float32")).double()
    if pe.trainable:
        rotary.get_buffer("theta0_vo").mul_(MOVED)
    position_T = pe.start + torch.arange(NUM_POSITIONS)
    [here] = rotary(position_T)
    here_BTHV = attention.heads(x_BTD, here, None)
    [there] = rotary(position_T + SHIFT)
    shifted_BTHV = attention.heads(x_BTD, there, None)

    laws = {INVARIANT: here_BTHV}
    if {"v", "o"} <= set(attn.sites()):
        by_shift = rotary(torch.full((NUM_POSITIONS,), SHIFT))[0].tables("o")
        laws[ROTATED] = rotate_last(here_BTHV, by_shift, attention.rotary_dim)
        laws[ROTATED_BACK] = rotate_last(here_BTHV, by_shift, attention.rotary_dim, inverse=True)
    # Relative to the largest output: a linear kind may divide by a tiny number.
    size = float(here_BTHV.abs().max().clamp(min=1))
    errors = {law: _deviation(shifted_BTHV, other) / size for law, other in laws.items()}

    expected = expected_class(sites)
    holding = [law for law, error in errors.items() if error < tolerance] or [NEITHER]
    if holding != [expected]:
        raise LawError(
            f"the rotation of {pe.name} is {' and '.join(holding)}, and by the mathematics of "
            f"rotate={list(sites)} it must be {expected} (deviations {errors}); refusing to train"
        )

    others: dict[str, Tensor] = {}
    if causal:
        # Both ways, nothing is cached, and no form but training's is used.
        others |= attention.forms(x_BTD, here)
        cache = LayerCache(attention.window)
        parts = zip(torch.split(x_BTD, PARTS, dim=1), torch.split(position_T, PARTS), strict=True)
        cached = []
        for x_1PD, position_P in parts:
            [positions] = rotary(position_P)
            cached.append(attention.heads(x_1PD, positions, cache))
        others["cached"] = torch.cat(cached, dim=1)
    formulas = {name: _deviation(other, here_BTHV) / size for name, other in others.items()}
    failing = [name for name, error in formulas.items() if not error < tolerance]
    if failing:
        raise LawError(
            f"attn.kind={attn.kind} computed as {' and '.join(failing)} is not what "
            f"training computes (deviations {formulas}); refusing to train"
        )
    shift = {"expected": expected, "measured": expected, "shift": SHIFT, "max_deviation": errors}
    return shift | {"formulas": formulas}


def _measured_decoder(
    small: ModelConfig, pe: PeConfig, attn: AttentionConfig, causal: bool
) -> dict[str, Any]:
    """Measure the response of a small decoder's logits to a shift of all positions."""
    # Learned frequencies keep their initial values, and rounded ones are taken exactly.
    exact = replace(pe, trainable=False, trainable_scope="model", trainable_lr=1.0, layers=None)
    exact = replace(exact, layers_vo=None, precision="float32", name="test")
    num_positions = pe.start + NUM_POSITIONS + SHIFT
    decoder = Decoder(Architecture(small, exact, VOCAB, attn.small(), causal, num_positions))
    _draw(decoder.double())

    ids_BT = (torch.arange(2)[:, None] + torch.arange(NUM_POSITIONS)) % VOCAB
    position_BT = torch.arange(NUM_POSITIONS)[None]
    here_BTV = decoder(ids_BT, position_BT=position_BT)
    shifted_BTV = decoder(ids_BT, position_BT=position_BT + SHIFT)
    error = _deviation(shifted_BTV, here_BTV) / float(here_BTV.abs().max())

    tolerance = TOLERANCE * (100 + pe.start)
    if pe.code is not None:
        tolerance = CUSTOM_TOLERANCE
    measured = INVARIANT if error < tolerance else "changed"

    stated = [module.relative for module in decoder.modules() if hasattr(module, "relative")]
    expected: str | None = "changed"
    if expected_class(pe.rotate) == INVARIANT and all(stated):
        expected = INVARIANT
    if None in stated:
        expected = None
    if not math.isfinite(error) or expected not in (measured, None):
        reason = (
            f"the logits under {pe.name} are {measured} where all positions shift, and must be "
            f"{expected} (deviation {error}); refusing to train"
        )
        if pe.code is None:
            raise LawError(reason)
        remedy = "the class says so by `relative`: True, False, or None for no claim"
        raise ConfigError("pe.code", pe.code, f"{reason}; {remedy}")

    checked = {"expected": expected, "measured": measured, "deviation": error}
    if pe.code is None:
        return checked
    return checked | _measured_custom(decoder, ids_BT)


def _measured_custom(decoder: Decoder, ids_BT: Tensor) -> dict[str, Any]:
    """Check what a user's class must do besides: learn, repeat itself, and be cached."""
    code = decoder.architecture.pe.code
    with torch.enable_grad():
        decoder(ids_BT, ids_BT).backward()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        once = dict(Decoder(decoder.architecture).named_parameters())
        torch.manual_seed(2)
        again = dict(Decoder(decoder.architecture).named_parameters())
    for name, parameter in decoder.named_parameters():
        if parameter.grad is None:
            reason = f"{name} has no part in the logits; make it where it is used (sizes.layer)"
            raise ConfigError("pe.code", code, reason)
        if CUSTOM not in name:
            continue
        is_equal = torch.equal(once[name], again[name])
        if parameter.ndim != 2 and not is_equal:
            raise ConfigError("pe.code", code, f"{name} is random; __init__ must not draw")
        # A matrix of zeros may be `torch.empty`.
        if parameter.ndim == 2 and is_equal and once[name].any():
            reason = f"{name} is a matrix, and the run's seed draws those; to keep the values of "
            raise ConfigError("pe.code", code, f"{reason}__init__, store it flat: x.flatten()")
    saved = {name for name in decoder.state_dict() if CUSTOM in name}
    for name in sorted(saved - once.keys()):
        reason = f"{name} is a buffer, and checkpoints keep parameters alone; compute it in the "
        raise ConfigError("pe.code", code, f"{reason}method that uses it")

    if not decoder.architecture.causal:
        return {}
    cache = decoder.new_cache()
    parts = [decoder(part_BT, cache=cache) for part_BT in torch.split(ids_BT, PARTS, dim=1)]
    whole_BTV = decoder(ids_BT)
    error = _deviation(torch.cat(parts, dim=1), whole_BTV) / float(whole_BTV.abs().max())
    if not error < CUSTOM_TOLERANCE:
        reason = f"with a cache, or run twice, the logits differ by {error}; refusing to train"
        raise ConfigError("pe.code", code, reason)
    return {"cached": error}


def _deviation(one: Tensor, other: Tensor) -> float:
    return float((one - other).abs().max())


def _draw(module: nn.Module) -> None:
    """Draw matrices with a scale at which a softmax is neither flat nor sharp."""
    generator = torch.Generator().manual_seed(0)
    for name, parameter in module.named_parameters():
        if parameter.ndim == 2:
            std = parameter.shape[1] ** -0.5
            nn.init.normal_(parameter, std=std, generator=generator)
        elif CUSTOM in name:
            # As after some training: a parameter that starts at 0 would hide what it does.
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.add_(0.1 * noise.to(parameter.dtype))
