"""Tests of layer patterns, frequencies of each pair, learned frequencies and inputs."""

import math
from typing import Any

import pytest
import torch
from support.models import (
    fed,
    make_decoder,
    make_pe,
    make_sizes,
    normal,
    opinionated,
    rotation_matrix,
    tokens,
)

from rope_exp.attention import rotate_last
from rope_exp.errors import ConfigError
from rope_exp.probes._windows import attentions
from rope_exp.rotary import Rotary

LENGTH = 9


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, ["qkvo"] * 5),
        ({"layers": (1, 1, 1, 0)}, ["qkvo", "qkvo", "qkvo", "", "qkvo"]),
        ({"layers": (1, 0), "layers_vo": (0, 1)}, ["qk", "vo", "qk", "vo", "qk"]),
        ({"layers_vo": (0, 0, 1)}, ["qk", "qk", "qkvo", "qk", "qk"]),
        ({"layers": (0, 1), "layers_vo": (1,)}, ["vo", "qkvo", "vo", "qkvo", "vo"]),
    ],
)
def test_a_pattern_says_which_layers_rotate(changes: Any, expected: list[str]) -> None:
    decoder = make_decoder(*"qkvo", sizes=make_sizes(num_hidden_layers=5), **changes)
    sites = [attention.sites for attention in attentions(decoder)]
    assert sites == [set(names) for names in expected]


def test_one_meaning_has_one_spelling() -> None:
    plain = make_pe(*"qkvo")
    assert make_pe(*"qkvo", layers=(1, 1), layers_vo=(1,), base_vo=100.0) == plain
    assert make_pe(*"qkvo", fraction_vo=1.0, layers_vo=(1,)) == plain
    assert make_pe(*"qkvo", layers=(1, 0, 1, 0)) == make_pe(
        *"qkvo", layers=(1, 0), layers_vo=(1, 0)
    )
    assert make_pe("q", trainable="raw") == make_pe("q", trainable=True)


def test_each_pair_turns_by_its_own_frequencies() -> None:
    """The reference is dense matrices; v and o have their own base and rotate half the features."""
    pe = make_pe(*"qkvo", base_vo=7.0, fraction_vo=0.5)
    [at] = Rotary(8, pe).double()(torch.arange(LENGTH))
    x_BTHK = normal(1, LENGTH, 2, 8)
    for site in "qkvo":
        rotated = rotate_last(x_BTHK, at.tables(site), 8, inverse=site == "o")
        for position in range(LENGTH):
            matrix = rotation_matrix(position, 8)
            if site in "vo":
                # Half of eight features are two pairs; the others do not rotate.
                matrix = torch.eye(8, dtype=torch.float64)
                matrix[:4, :4] = rotation_matrix(position, 4, base=7.0)
            right = x_BTHK[0, position] @ (matrix if site == "o" else matrix.T)
            torch.testing.assert_close(rotated[0, position], right, rtol=0, atol=1e-6)


def test_tables_in_bf16_hold_no_position_above_256() -> None:
    """bfloat16 has 8 significant bits: 257 rounds to 256, so the two positions share a rotation."""
    [at] = Rotary(8, make_pe("q", "k", precision="bf16"))(torch.arange(300))
    theta_F = torch.tensor([100.0 ** (-2 * f / 8) for f in range(4)]).bfloat16()
    for table_TF, function in zip(at.qk, (torch.cos, torch.sin), strict=True):
        assert torch.equal(table_TF[257], table_TF[256])
        for position in (0, 1, 7, 100, 255, 256):
            angle_F = (position * theta_F.double()).bfloat16()
            assert torch.equal(table_TF[position], function(angle_F.double()).bfloat16())


def test_tables_are_float32_unless_the_model_is_wider() -> None:
    """A float64 model, which measures laws and checks exports, has its tables in float64."""
    rotary = Rotary(8, make_pe("q", "k"))
    assert rotary(torch.arange(3))[0].qk[0].dtype == torch.float32
    assert rotary.double()(torch.arange(3))[0].qk[0].dtype == torch.float64


def test_a_share_in_percent_is_rounded_down_as_it_is_written() -> None:
    """The reference uses integers, so a share's float error must not lose a pair."""
    for percent in range(1, 100):
        pe = make_pe(*"qkvo", fraction=percent / 100)
        for head_dim in range(2, 514, 2):
            assert pe.num_features(head_dim) == 2 * (head_dim * percent // 200)


SCOPES = {"model": (), "layer": (2,), "head": (2, 2)}


@pytest.mark.parametrize("trainable", ["raw", "log"])
@pytest.mark.parametrize("scope", SCOPES)
@torch.no_grad()
def test_learned_frequencies_begin_where_fixed_ones_stand(scope: str, trainable: str) -> None:
    """In every scope, LLaMA's weights and the logits equal those with fixed frequencies."""
    fixed = opinionated(*"qkvo")
    ours = opinionated(*"qkvo", trainable=trainable, trainable_scope=scope)
    named = dict(ours.named_parameters())
    for name, parameter in fixed.named_parameters():
        assert torch.equal(named.pop(name), parameter)
    assert {name: tuple(parameter.shape) for name, parameter in named.items()} == {
        "model.rotary_emb.inv_freq": (*SCOPES[scope], 4),
        "model.rotary_emb.inv_freq_vo": (*SCOPES[scope], 4),
    }
    ids_BT = tokens(2, LENGTH)
    torch.testing.assert_close(ours(ids_BT), fixed(ids_BT), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("scope", SCOPES)
def test_a_learned_frequency_moves_who_has_it(scope: str) -> None:
    """Changing the frequencies of one layer or head changes only its own tables."""
    decoder = make_decoder("v", "o", trainable="log", trainable_scope=scope)
    rotary = decoder.model.rotary_emb
    before = rotary(torch.arange(3))
    with torch.no_grad():
        first = rotary.get_parameter("inv_freq").view(-1, 4)[0]
        first += 0.5
    after = rotary(torch.arange(3))
    changed = []
    for old, new in zip(before, after, strict=True):
        assert torch.equal(old.qk[0], new.qk[0])
        changed.append((old.vo[0] != new.vo[0]).view(-1, 3, 4).any(-1).any(-1).tolist())
    expected = {
        "model": [[True], [True]],
        "layer": [[True], [False]],
        "head": [[True, False], [False, False]],
    }
    assert changed == expected[scope]

    ids_BT = tokens(2, LENGTH)
    decoder(ids_BT[:, :-1], ids_BT[:, 1:]).backward()
    gradient = rotary.get_parameter("inv_freq").grad
    assert gradient is not None
    assert bool(gradient.ne(0).view(-1, 4).any(-1).all())


@torch.no_grad()
def test_raw_frequencies_turn_by_their_absolute_value() -> None:
    decoder = make_decoder("q", "k", trainable=True)
    before = decoder(tokens(1, LENGTH))
    decoder.model.rotary_emb.get_parameter("inv_freq").neg_()
    assert torch.equal(decoder(tokens(1, LENGTH)), before)


@torch.no_grad()
def test_sines_and_cosines_are_as_large_as_embeddings() -> None:
    """The default RMS is that of initial embeddings, 0.02; unscaled, it is 35 times larger."""
    zero = torch.zeros(1, 300, 32)
    cases: list[tuple[dict[str, Any], float]] = [
        ({}, 0.02),
        ({"input_scale": 1.0}, math.sqrt(0.5)),
    ]
    for changes, expected in cases:
        [added] = make_decoder(input="sinusoidal", **changes).model.outside_layers
        rms = added.embed(zero, torch.arange(300)).square().mean().sqrt()
        assert float(rms) == pytest.approx(expected, rel=1e-6)


def test_a_position_that_was_not_learned_is_refused() -> None:
    decoder = opinionated(input="learned", num_positions=LENGTH)
    decoder(tokens(1, LENGTH))
    with pytest.raises(ConfigError, match="positions 0 to 8; asked for were 0 to 9"):
        decoder(tokens(1, LENGTH + 1))
    with pytest.raises(ConfigError, match="asked for were -1 to 1"):
        decoder(tokens(1, 3), position_BT=torch.tensor([[-1, 0, 1]]))
    with pytest.raises(IndexError):
        decoder(tokens(1, 3), position_BT=torch.tensor([[0.0, 0.5, 1.0]]))


@pytest.mark.parametrize("changes", [{}, {"trainable": "log", "trainable_scope": "head"}], ids=str)
@pytest.mark.parametrize("start", [2**16, 2**24 - LENGTH], ids=str)
@torch.no_grad()
def test_the_last_positions_are_as_good_as_the_first(start: int, changes: dict[str, Any]) -> None:
    """At far positions a relative variant's float32 logits do not change, also from a cache."""
    decoder = opinionated(*"qkvo", **changes)
    ids_BT = tokens(2, LENGTH)
    here = decoder(ids_BT)
    decoder.model.start = start
    for there in (decoder(ids_BT), fed(decoder, ids_BT, [4, 1, 4])):
        assert float((there - here).abs().max() / here.abs().max()) < 1e-4
