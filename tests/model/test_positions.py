"""Tests of layer patterns, frequencies of each pair, learned frequencies and inputs."""

import math
from typing import Any

import pytest
import torch
from support.models import (
    SUBSETS,
    make_decoder,
    make_pe,
    make_sizes,
    normal,
    opinionated,
    rotation_matrix,
    tokens,
)

from rope_exp.attention import turned
from rope_exp.decoder import Block, Decoder, Rotary
from rope_exp.errors import ConfigError

LENGTH = 9


def sites_of_layers(decoder: Decoder) -> list[str]:
    found = []
    for layer in decoder.model.layers:
        assert isinstance(layer, Block)
        found.append("".join(site for site in "qkvo" if site in layer.self_attn.sites))
    return found


def loud(decoder: Decoder) -> Decoder:
    """Return the decoder in float64, with non-uniform attention, so that positions matter."""
    with torch.no_grad():
        for parameter in decoder.parameters():
            if parameter.ndim == 2:
                parameter.mul_(12)
    return decoder.double().eval()


def with_positions(*rotate: str, num_positions: int = 64, **changes: Any) -> Decoder:
    return opinionated(*rotate, num_positions=num_positions, **changes).double().eval()


# -- layers ----------------------------------------------------------------------------------------


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
    sizes = make_sizes(num_hidden_layers=5)
    assert sites_of_layers(make_decoder(*"qkvo", sizes=sizes, **changes)) == expected


def test_one_meaning_has_one_spelling() -> None:
    plain = make_pe(*"qkvo")
    assert make_pe(*"qkvo", layers=(1, 1), layers_vo=(1,), base_vo=100.0) == plain
    assert make_pe(*"qkvo", fraction_vo=1.0, layers_vo=(1,)) == plain
    assert make_pe(*"qkvo", layers=(1, 0, 1, 0)) == make_pe(
        *"qkvo", layers=(1, 0), layers_vo=(1, 0)
    )
    assert make_pe("q", trainable="raw") == make_pe("q", trainable=True)


# -- frequencies -----------------------------------------------------------------------------------


@pytest.mark.parametrize("sites", SUBSETS, ids="".join)
def test_each_pair_turns_by_its_own_frequencies(sites: tuple[str, ...]) -> None:
    """The reference is dense matrices; v and o have their own base and rotate half the features."""
    own = {"base_vo": 7.0, "fraction_vo": 0.5} if {"v", "o"} & set(sites) else {}
    [at] = Rotary(8, make_pe(*sites, **own)).double()(torch.arange(LENGTH))
    x_BTHK = normal(1, LENGTH, 2, 8)
    for site in sites:
        found = turned(x_BTHK, at.tables(site), 8, inverse=site == "o")
        for position in range(LENGTH):
            matrix = rotation_matrix(position, 8)
            if site in "vo":
                # Half of eight features are two pairs; the others do not rotate.
                matrix = torch.eye(8, dtype=torch.float64)
                matrix[:4, :4] = rotation_matrix(position, 4, base=7.0)
            matrix = matrix.T if site == "o" else matrix
            right = x_BTHK[0, position] @ matrix.T
            assert float((found[0, position] - right).abs().max()) < 1e-6


def test_a_share_in_percent_is_rounded_down_as_it_is_written() -> None:
    """The reference uses integers, so a share's float error must not lose a pair."""
    for percent in range(1, 100):
        pe = make_pe(*"qkvo", fraction=percent / 100)
        of_vo = make_pe(*"qkvo", fraction_vo=percent / 100)
        for head_dim in range(2, 514, 2):
            expected = 2 * (head_dim * percent // 200)
            assert pe.num_features(head_dim) == expected
            assert of_vo.num_features(head_dim, "vo") == expected


SCOPES = {"model": (), "layer": (2,), "head": (2, 2)}


@pytest.mark.parametrize("trainable", ["raw", "log"])
@pytest.mark.parametrize("scope", SCOPES)
@torch.no_grad()
def test_learned_frequencies_begin_where_fixed_ones_stand(scope: str, trainable: str) -> None:
    """In every scope, LLaMA's weights and the logits equal those with fixed frequencies."""
    fixed = loud(make_decoder(*"qkvo"))
    ours = loud(make_decoder(*"qkvo", trainable=trainable, trainable_scope=scope))
    named = dict(ours.named_parameters())
    of_fixed = dict(fixed.named_parameters())
    assert all(torch.equal(named[name], of_fixed[name]) for name in of_fixed)
    shapes = {name: tuple(named[name].shape) for name in named.keys() - of_fixed.keys()}
    assert shapes == {
        "model.rotary_emb.inv_freq": (*SCOPES[scope], 4),
        "model.rotary_emb.inv_freq_vo": (*SCOPES[scope], 4),
    }
    if trainable == "log" or scope == "model":
        # loud() multiplies raw frequencies if they are a matrix.
        difference = ours(tokens(2, LENGTH)) - fixed(tokens(2, LENGTH))
        assert float(difference.abs().max()) < 1e-6


@pytest.mark.parametrize("scope", SCOPES)
def test_a_learned_frequency_moves_who_has_it(scope: str) -> None:
    """Changing the frequencies of one layer or head changes only its own tables."""
    decoder = make_decoder("v", "o", trainable="log", trainable_scope=scope)
    rotary = decoder.model.rotary_emb
    before = rotary(torch.arange(3))
    with torch.no_grad():
        first = rotary.inv_freq.view(-1, 4)[0]
        first += 0.5
    after = rotary(torch.arange(3))
    changed = []
    for old, new in zip(before, after, strict=True):
        assert torch.equal(old.qk[0], new.qk[0])
        differs = (old.vo[0] != new.vo[0]).view(-1, 3, 4).any(-1).any(-1)
        changed.append(differs.tolist())
    assert (
        changed
        == {
            "model": [[True], [True]],
            "layer": [[True], [False]],
            "head": [[True, False], [False, False]],
        }[scope]
    )

    ids_BT = tokens(2, LENGTH)
    decoder(ids_BT[:, :-1], ids_BT[:, 1:]).backward()
    gradient = rotary.inv_freq.grad
    assert gradient is not None
    assert bool((gradient != 0).view(-1, 4).any(-1).all())


@torch.no_grad()
def test_raw_frequencies_turn_by_their_absolute_value() -> None:
    decoder = make_decoder("q", "k", trainable=True)
    before = decoder(tokens(1, LENGTH))
    decoder.model.rotary_emb.inv_freq.neg_()
    assert torch.equal(decoder(tokens(1, LENGTH)), before)


# -- inputs and biases -----------------------------------------------------------------------------


@torch.no_grad()
def test_sines_and_cosines_are_as_large_as_embeddings() -> None:
    """The default RMS is that of initial embeddings, 0.02; unscaled, it is 35 times larger."""
    added = make_decoder(input="sinusoidal").model.added_positions
    zero = torch.zeros(1, 300, 32)
    rms = added.embed(zero, torch.arange(300)).square().mean().sqrt()
    assert float(rms) == pytest.approx(0.02, rel=1e-6)
    unscaled = make_decoder(input="sinusoidal", input_scale=1.0).model.added_positions
    rms = unscaled.embed(zero, torch.arange(300)).square().mean().sqrt()
    assert float(rms) == pytest.approx(math.sqrt(0.5), rel=1e-6)


def test_a_position_that_was_not_learned_is_refused() -> None:
    decoder = with_positions(input="learned", num_positions=LENGTH)
    decoder(tokens(1, LENGTH))
    with pytest.raises(ConfigError, match="positions 0 to 8; asked for were 0 to 9"):
        decoder(tokens(1, LENGTH + 1))
    with pytest.raises(ConfigError, match="asked for were -1 to 1"):
        decoder(tokens(1, 3), positions_BT=torch.tensor([[-1, 0, 1]]))
    with pytest.raises(IndexError):
        decoder(tokens(1, 3), positions_BT=torch.tensor([[0.0, 0.5, 1.0]]))


@pytest.mark.parametrize("changes", [{}, {"trainable": "log", "trainable_scope": "head"}], ids=str)
@pytest.mark.parametrize("start", [2**16, 2**24 - LENGTH], ids=str)
@torch.no_grad()
def test_the_last_positions_are_as_good_as_the_first(start: int, changes: dict[str, Any]) -> None:
    """At far positions a relative variant's float32 logits do not change, also from a cache."""
    decoder = loud(make_decoder(*"qkvo", **changes)).float()
    ids_BT = tokens(2, LENGTH)
    here = decoder(ids_BT)
    decoder.model.start = start
    cache = decoder.new_cache()
    parts = [decoder(part, cache=cache) for part in ids_BT.split([4, 1, 4], dim=1)]
    for there in (decoder(ids_BT), torch.cat(parts, dim=1)):
        assert float((there - here).abs().max() / here.abs().max()) < 1e-4
