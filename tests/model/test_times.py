"""Tests of a bidirectional decoder whose positions are times, that is, real numbers.

The reference is torch_brain's `RotarySelfAttention` with `RotaryTimeEmbedding`, rewritten from its
formulas: features 2f and 2f + 1 are a pair, the first half of a head's pairs rotates by
2 pi t / period_f, and periods are spaced logarithmically from t_min to t_max.
"""

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.kinds import make_layer
from support.models import make_pe, make_sizes, normal, opinionated
from torch import Tensor

from rope_exp.corpus import Batch
from rope_exp.decoder import Decoder, on_device
from rope_exp.rotary import Rotary
from rope_exp.sections import DataConfig, SoftmaxConfig
from rope_exp.tasks.spikes import SPEC, rows

T_MIN, T_MAX = 1e-4, 2.0627  # POYO's, in seconds
POYO = {"fraction": 0.5, "base": 40000.0, "vocab_size": len(SPEC.tokens)}


def make_spikes_decoder(*rotate: str) -> Decoder:
    sizes = make_sizes(num_key_value_heads=4)
    given: dict[str, Any] = {"sizes": sizes, "causal": False, "num_outputs": 2, **POYO}
    return opinionated(*rotate, scale=8, **given).double()


def make_inputs(count: int = 2) -> Batch:
    data = DataConfig(kind="spikes", period=T_MIN)
    return on_device(rows(data, 1, "train", range(count), 176).batch, torch.device("cpu"))


@torch.no_grad()
def predicted(decoder: Decoder, inputs: Batch) -> Tensor:
    predicted_BPD: Tensor = decoder(inputs.ids_BT, **inputs.model_kwargs)
    return predicted_BPD


@pytest.mark.parametrize("rotate", ["", "qk", "vo", "qkvo"])
@settings(max_examples=4)
@given(shift=st.floats(-3.0, 3.0))
def test_relative_variants_do_not_feel_a_shift_of_time(rotate: str, shift: float) -> None:
    """A shift by any real number of seconds leaves every R_i^T R_j unchanged.

    The fastest pair rotates by 63,000 radians a second, which float64 represents to 1e-11.
    """
    decoder = make_spikes_decoder(*rotate)
    inputs = make_inputs()
    later = inputs._replace(position_BT=inputs.position_BT + 2 * math.pi / T_MIN * shift)
    moved = predicted(decoder, later) - predicted(decoder, inputs)
    assert float(moved.abs().max()) < 1e-8


def test_padding_is_met_by_no_event_and_no_query() -> None:
    """The ids and times of padding do not change any prediction."""
    decoder = make_spikes_decoder("q", "k", "v", "o")
    inputs = make_inputs()
    is_pad_BT = inputs.document_BT == 1
    assert is_pad_BT.any()
    other = inputs._replace(
        ids_BT=torch.where(is_pad_BT, 3, inputs.ids_BT),
        position_BT=torch.where(is_pad_BT, 777.7, inputs.position_BT),
    )
    torch.testing.assert_close(predicted(decoder, other), predicted(decoder, inputs))


def test_the_loss_is_the_mean_squared_error_at_queries() -> None:
    """Every parameter also receives a gradient from the loss."""
    decoder = make_spikes_decoder("q", "k")
    inputs = make_inputs(3)
    nats = decoder(inputs.ids_BT, inputs.target_BP.double(), **inputs.model_kwargs)
    guess_BQD = predicted(decoder, inputs)
    assert guess_BQD.shape == (3, 16, 2)
    expected = np.mean((guess_BQD.numpy() - make_inputs(3).target_BP.numpy()) ** 2)
    assert float(nats.detach()) / (3 * 16) == pytest.approx(expected)
    nats.backward()
    assert all(parameter.grad is not None for parameter in decoder.parameters())


def their_rotation(x_THK: Tensor, time_T: Tensor, sign: int) -> Tensor:
    """Return x with pairs (2f, 2f + 1), as complex numbers, rotated by sign * 2 pi t / period_f."""
    num_pairs = x_THK.shape[-1] // 2
    num_rotating = num_pairs // 2
    exponent_F = torch.linspace(0, 1, num_rotating, dtype=torch.float64)
    period_F = T_MIN * (T_MAX / T_MIN) ** exponent_F
    omega_F = torch.zeros(num_pairs, dtype=torch.float64)
    omega_F[:num_rotating] = 2 * math.pi / period_F
    angle_TF = sign * time_T[:, None] * omega_F
    turn_TF = torch.polar(torch.ones_like(angle_TF), angle_TF)
    pairs_THF = torch.view_as_complex(x_THK.unflatten(-1, (-1, 2)).contiguous())
    return torch.view_as_real(pairs_THF * turn_TF[:, None]).flatten(-2)


def their_attention(
    x_TD: Tensor, weights: list[Tensor], time_T: Tensor, *, rotate_value: bool
) -> Tensor:
    """Return o_i = R(-t_i) sum_j softmax_j(R(t_i) q_i . R(t_j) k_j / sqrt(K)) R(t_j) v_j."""
    q, k, v = ((x_TD @ weight.T).unflatten(-1, (4, -1)) for weight in weights)
    q, k = (their_rotation(x, time_T, 1) for x in (q, k))
    if rotate_value:
        v = their_rotation(v, time_T, 1)
    scores_HTT = torch.einsum("ihk,jhk->hij", q, k) / math.sqrt(q.shape[-1])
    o_THK = torch.einsum("hij,jhk->ihk", scores_HTT.softmax(-1), v)
    if rotate_value:
        o_THK = their_rotation(o_THK, time_T, -1)
    return o_THK


@pytest.mark.parametrize("rotate", ["qk", "qkvo"])
def test_it_is_torch_brains_layer(rotate: str) -> None:
    """Outputs agree up to the order of features: their pairs are adjacent, ours are F apart.

    Their periods reach t_max at the last of F pairs, ours would at the next one. So our base is
    (t_max / t_min)^(F / (F - 1)), which is 40,000 for the 16 pairs of POYO's heads of 64.
    """
    dim = 64
    sizes = make_sizes(hidden_size=4 * dim, num_attention_heads=4, num_key_value_heads=4)
    base = (T_MAX / T_MIN) ** (16 / 15)
    assert base == pytest.approx(40000, rel=1e-3)
    pe = make_pe(*rotate, fraction=0.5, base=base)
    attention = make_layer(SoftmaxConfig(), rotate, sizes=sizes).double()
    attention.causal = False
    generator = torch.Generator().manual_seed(0)
    time_T = torch.rand(12, generator=generator, dtype=torch.float64).sort().values
    x_TD = normal(12, 4 * dim)
    # `Rotary` makes float32 frequencies; both pairs need them in float64 here.
    rotary = Rotary(dim, pe, num_layers=1)
    for pair in ("qk", "vo"):
        exponent_F = torch.arange(16, dtype=torch.float64) / 16
        rotary.register_buffer(f"theta0_{pair}", pe.base**-exponent_F, persistent=False)
    [at] = rotary(time_T * 2 * math.pi / T_MIN)
    with torch.no_grad():
        ours_THK = attention.heads(x_TD[None], at, None)[0]

    # Their feature 2f is our f, and their 2f + 1 is our f + F, among the rotating features.
    place_K = torch.arange(dim)
    place_K[0:32:2] = torch.arange(16)
    place_K[1:32:2] = torch.arange(16) + 16
    weights = []
    for layer in (attention.q_proj, attention.k_proj, attention.v_proj):
        weights.append(layer.weight.detach().unflatten(0, (4, dim))[:, place_K].flatten(0, 1))
    theirs_THK = their_attention(x_TD, weights, time_T, rotate_value=rotate == "qkvo")
    torch.testing.assert_close(ours_THK[..., place_K], theirs_THK, rtol=0, atol=1e-9)
