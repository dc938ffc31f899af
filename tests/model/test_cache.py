"""Tests that cached decoding equals the full forward pass, for every kind and allowed subset."""

import itertools
import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.kinds import KINDS, allowed, make_layer
from support.models import (
    SIZES,
    SUBSETS,
    make_positions,
    make_sizes,
    normal,
    num_numbers,
    opinionated,
    tokens,
)
from torch import Tensor

from rope_exp.attention import Cache, LayerCache, Positions
from rope_exp.costs import kept as kept_of
from rope_exp.decoder import Decoder
from rope_exp.sections import Kind, SoftmaxConfig

# Past the end of a table of 4,096 positions.
FAR = 4100
LENGTH = 12
TOLERANCE = 1e-10
# Relative SD of one rounding to bf16's 8 significant bits: uniform, and at most 2^-8.
ROUNDING = 2**-8 / math.sqrt(3)


def decoder_of(
    attn: Kind, sites: tuple[str, ...], *, window: int | None = None, **changes: Any
) -> Decoder:
    # Two query heads share a key/value head, if the kind allows it.
    groups = 2 if attn.takes_heads else 4
    sizes = make_sizes(num_key_value_heads=groups, window=window)
    return opinionated(*sites, attn=attn, sizes=sizes, scale=8, **changes).double().eval()


def fed(decoder: Decoder, ids_BT: Tensor, parts: list[int], cache: Cache | None = None) -> Tensor:
    """Return the logits of ids that are fed to a cache in parts."""
    cache = cache or decoder.new_cache()
    return torch.cat([decoder(part, cache=cache) for part in ids_BT.split(parts, dim=1)], dim=1)


def windows(attn: Kind) -> tuple[int | None, ...]:
    return (None, 1, 5) if attn.keeps_keys else (None,)


@pytest.mark.parametrize("attn", KINDS, ids=str)
@torch.no_grad()
def test_token_by_token_at_far_positions_is_the_whole(attn: Kind) -> None:
    ids_BT = tokens(2, LENGTH)
    for sites, window in itertools.product(SUBSETS, windows(attn)):
        if not allowed(attn, sites):
            continue
        decoder = decoder_of(attn, sites, window=window, start=FAR)
        whole = decoder(ids_BT)
        for parts in ([1] * LENGTH, [5, 1, 1, 5], [LENGTH]):
            ours = fed(decoder, ids_BT, parts)
            assert float((ours - whole).abs().max()) < TOLERANCE, (sites, window, parts)


@pytest.mark.parametrize(
    "attn",
    [KINDS[0], *(pytest.param(each, marks=pytest.mark.torture) for each in KINDS[1:])],
    ids=str,
)
@torch.no_grad()
def test_thousands_of_entries_are_the_whole(attn: Kind) -> None:
    """A float32 cache is filled in two parts, and then token by token past position 4,096."""
    decoder = decoder_of(attn, attn.sites()).float()
    ids_BT = tokens(1, FAR)
    last = FAR - 4093
    whole = decoder(ids_BT)[:, -last:]
    ours = fed(decoder, ids_BT, [2000, 2093, *[1] * last])[:, -last:]
    assert float((ours - whole).abs().max() / whole.abs().max()) < 1e-4


@pytest.mark.parametrize("attn", KINDS, ids=str)
@torch.no_grad()
def test_token_by_token_in_bf16_is_near_the_whole(attn: Kind) -> None:
    """A layer under autocast, past one chunk, keeps keys in bfloat16 and states in float32.

    After the projections, which both share, each path rounds at most eight times: a feature or a
    norm, the rotation, a score, a weight, a sum, a quotient, the rotation back, and the last
    projection. Scores are of size 1, so each rounding counts about once. The squares of sixteen
    independent errors add up, which gives four times one error.
    """
    length = 70
    sites = attn.sites()
    if getattr(attn, "form", None) == "both":
        # A rotated denominator may cancel to almost 0, and the quotient then has no correct digit.
        sites = ("v", "o")
    layer = make_layer(attn, sites)
    x_BTD = normal(2, length, SIZES.hidden_size, seed=4).float()
    at = make_positions(length, layer.rotary_dim, dtype=torch.float32)

    cache = LayerCache()
    of_tokens = zip(*(part.split(1, dim=-2) for part in (x_BTD, *at.qk)), strict=True)
    with torch.autocast("cpu", torch.bfloat16):
        whole = layer(x_BTD, at)
        outputs = []
        for x_B1D, *tables in of_tokens:
            here = (tables[0], tables[1])
            outputs.append(layer(x_B1D, Positions(here), cache))
        ours = torch.cat(outputs, dim=1)

    deviation = (ours.double() - whole.double()).norm() / whole.double().norm()
    assert float(deviation) < math.sqrt(16) * ROUNDING
    assert ours.dtype == torch.bfloat16
    assert {tensor.dtype for tensor in cache.rows.values()} <= {torch.bfloat16}
    assert {tensor.dtype for tensor in cache.states.values()} <= {torch.float32}
    assert bool(cache.rows) == attn.keeps_keys == (not cache.states)


@settings(max_examples=20)
@given(st.data())
@torch.no_grad()
def test_any_parts_give_the_same(data: st.DataObject) -> None:
    attn = data.draw(st.sampled_from(KINDS))
    sites = data.draw(st.sampled_from([each for each in SUBSETS if allowed(attn, each)]))
    window = data.draw(st.sampled_from(windows(attn)))
    cuts = sorted(data.draw(st.sets(st.integers(1, LENGTH - 1))))
    parts = [end - start for start, end in itertools.pairwise([0, *cuts, LENGTH])]
    decoder = decoder_of(attn, sites, window=window)
    ids_BT = tokens(1, LENGTH)
    assert float((fed(decoder, ids_BT, parts) - decoder(ids_BT)).abs().max()) < TOLERANCE


@pytest.mark.parametrize("attn", KINDS, ids=str)
@torch.no_grad()
def test_padding_on_the_left_changes_nothing(attn: Kind) -> None:
    """Each row has the logits that it has alone, whatever the padding holds."""
    sites = tuple(site for site in "qv" if site in attn.sites())
    pads = [0, 3, 7]
    for window in windows(attn):
        decoder = decoder_of(attn, sites, window=window)
        ids_BT = tokens(3, LENGTH)
        cache = decoder.new_cache(pads_B=torch.tensor(pads))
        ours = fed(decoder, ids_BT, [8, 1, 3], cache)
        for row, pad in enumerate(pads):
            alone = decoder(ids_BT[row : row + 1, pad:])
            assert float((ours[row, pad:] - alone[0]).abs().max()) < TOLERANCE, (window, pad)


@pytest.mark.parametrize("attn", KINDS, ids=str)
@torch.no_grad()
def test_a_cache_holds_what_the_config_says(attn: Kind) -> None:
    """A layer keeps `count.kept` elements: some per token, and some that do not grow."""
    for sites in SUBSETS:
        if not allowed(attn, sites):
            continue
        decoder = decoder_of(attn, sites)
        model = decoder.architecture.model
        kept = []
        for length in (LENGTH, 2 * LENGTH):
            cache = decoder.new_cache()
            fed(decoder, tokens(3, length), [length], cache)
            kept.append(num_numbers(cache) / 3 / model.num_hidden_layers)
        a_token, at_all = kept_of(attn, model, decoder.architecture.pe)
        assert kept == [at_all + count * a_token for count in (LENGTH, 2 * LENGTH)]


@torch.no_grad()
def test_a_window_of_one_key_has_its_own_bias() -> None:
    """A sink beside it shows the bias, which a softmax over one key would hide."""
    decoder = decoder_of(SoftmaxConfig(sink=True), ("v", "o"), window=1, bias="alibi")
    ids_BT = tokens(2, LENGTH)
    whole = decoder(ids_BT)
    for parts in ([1] * LENGTH, [5, 1, 6]):
        assert float((fed(decoder, ids_BT, parts) - whole).abs().max()) < TOLERANCE, parts


@torch.no_grad()
def test_windows_by_layer_are_cached_layer_by_layer() -> None:
    """The layer with the window keeps only its last keys, and the other layer keeps all."""
    sizes = make_sizes(window=3, window_layers=(1, 0))
    decoder = opinionated("q", "k", sizes=sizes).double()
    ids_BT = tokens(2, LENGTH)
    cache = decoder.new_cache()
    ours = fed(decoder, ids_BT, [5, 1, 1, 5], cache)
    assert float((ours - decoder(ids_BT)).abs().max()) < TOLERANCE
    kept = [layer.rows["k"].shape[1] for layer in cache.layers]
    # The last five queries attend to two keys before the first of them.
    assert kept == [7, LENGTH]


@torch.no_grad()
def test_a_window_keeps_no_more_than_it_needs() -> None:
    decoder = decoder_of(KINDS[0], ("q", "k"), window=5)
    cache = decoder.new_cache()
    fed(decoder, tokens(1, LENGTH), [1] * LENGTH, cache)
    assert cache.layers[0].rows["k"].shape[1] == 5


@torch.no_grad()
def test_the_room_of_a_long_prompt_is_given_back() -> None:
    """The buffer shrinks after the prompt, and few of the next 40 tokens cause a new one."""
    decoder = decoder_of(KINDS[0], ("q", "k"), window=5)
    cache = decoder.new_cache()
    fed(decoder, tokens(1, 200), [200], cache)
    places = []
    for _ in range(40):
        decoder(tokens(1, 1), cache=cache)
        places.append(cache.layers[0].rows["k"].untyped_storage().data_ptr())
        assert cache.layers[0].rows["k"].untyped_storage().nbytes() <= 8 * 2 * 2 * 5 * 8
    assert len(set(places)) < 12


def test_a_cache_holds_no_gradient() -> None:
    for attn in KINDS:
        decoder = decoder_of(attn, ())
        cache = decoder.new_cache()
        decoder(tokens(1, 4), cache=cache)
        kept = [*cache.layers[0].rows.values(), *cache.layers[0].states.values()]
        assert kept
        assert not any(tensor.requires_grad for tensor in kept)
