"""What holds for every kind of attention: of rope_exp/attn, and softmax in the core."""

import math
from typing import Any

import pytest
import torch
from support.kinds import CASES, KINDS, all_sites, make_layer, sizes_for, subsets_of
from support.models import (
    BASE,
    SIZES,
    deviation,
    fed,
    make_pe,
    make_positions,
    make_sizes,
    normal,
    num_numbers,
    opinionated,
    tokens,
)
from torch import Tensor

from rope_exp.attention import Attention, LayerCache, Positions
from rope_exp.attn._recurrence import StateAttention
from rope_exp.costs import cached_sizes
from rope_exp.decoder import Decoder
from rope_exp.errors import LawError
from rope_exp.identity import choice_names
from rope_exp.laws import certificate, expected_class
from rope_exp.sections import PAIRS, AttentionConfig

# Past the end of a table of 4,096 positions.
FAR = 4100
LENGTH = 12
TOLERANCE = 1e-9
# Relative SD of one rounding to bf16's 8 significant bits: uniform, and at most 2^-8.
ROUNDING = 2**-8 / math.sqrt(3)
# Documents of one row, one of them a single token.
DOCUMENTS = torch.tensor([[3, 3, 3, 3, 8, 8, 9, 3, 3, 3, 3, 3]])
# Models in which v and o turn by other frequencies than q and k.
APART: list[dict[str, Any]] = [
    {"base": 10_000.0, "base_vo": BASE},
    {"trainable": "log"},
    {"trainable": "raw", "trainable_scope": "layer"},
    {"trainable": "log", "trainable_scope": "head"},
    {"layers": (1, 0), "layers_vo": (0, 1)},
    {"layers": (1, 1), "layers_vo": (0, 1), "base_vo": 7.0},
]
ROTATES_ALL = [attn for attn in KINDS if tuple("qkvo") in subsets_of(attn)]
# Values are features of the keys.
SHARES = [
    attn
    for attn in ROTATES_ALL
    if getattr(attn, "value_rope", False) or getattr(attn, "form", None) == "s2"
]
every_case = pytest.mark.parametrize(("attn", "sizes"), CASES)


def decoder_of(
    attn: AttentionConfig, sites: tuple[str, ...], sizes: dict[str, Any], **changes: Any
) -> Decoder:
    """Return a float64 decoder with non-uniform attention and learned frequencies moved apart."""
    window = changes.pop("window", None)
    sizes_of_kind = sizes_for(attn, window=window, **sizes)
    decoder = opinionated(*sites, attn=attn, sizes=sizes_of_kind, scale=8, **changes)
    moved = {"inv_freq": 0.3, "inv_freq_vo": -0.4}
    with torch.no_grad():
        for name, parameter in decoder.named_parameters():
            parameter.add_(moved.get(name.rpartition(".")[2], 0.0))
    return decoder.double().eval()


def test_every_file_is_covered() -> None:
    assert {attn.kind for attn in KINDS} == {"softmax", *choice_names("attn")}


@every_case
@torch.no_grad()
def test_any_parts_at_far_positions_are_the_whole(
    attn: AttentionConfig, sizes: dict[str, Any]
) -> None:
    """Under every subset; none and all also in windows; and where v and o have their own base."""
    ids_BT = tokens(2, LENGTH)
    for sites in subsets_of(attn):
        windows = (None, 1, 5) if attn.keeps_keys and sites in ((), all_sites(attn)) else (None,)
        tried: list[dict[str, Any]] = [{"window": window} for window in windows]
        if {"v", "o"} & {*sites}:
            tried.append({"base_vo": 7.0})
        for changes in tried:
            decoder = decoder_of(attn, sites, sizes, start=FAR, **changes)
            whole = decoder(ids_BT)
            for parts in ([1, 5, 1, 1, 4], [11, 1], [LENGTH]):
                assert deviation(fed(decoder, ids_BT, parts), whole) < TOLERANCE, (sites, parts)


@pytest.mark.parametrize("changes", APART, ids=str)
@pytest.mark.parametrize("attn", ROTATES_ALL, ids=str)
@torch.no_grad()
def test_two_rotations_are_relative_and_cached(
    attn: AttentionConfig, changes: dict[str, Any]
) -> None:
    decoder = decoder_of(attn, tuple("qkvo"), {}, **changes)
    ids_BT = tokens(2, 20)
    whole = decoder(ids_BT)
    shifted = decoder(ids_BT, position_BT=13 + torch.arange(20)[None])
    assert deviation(shifted, whole) < TOLERANCE
    cache = decoder.new_cache()
    assert deviation(fed(decoder, ids_BT, [8, 1, 11], cache), whole) < TOLERANCE
    # The layer that keeps the most is counted.
    kept = max(sum(row[0, 0].numel() for row in layer.rows.values()) for layer in cache)
    assert kept == cached_sizes(attn, decoder.architecture.model, decoder.architecture.pe)[0]


@every_case
def test_a_cache_holds_what_the_config_says(attn: AttentionConfig, sizes: dict[str, Any]) -> None:
    """A layer keeps `costs.cached_sizes` elements: some per token, and some that do not grow."""
    decoder = decoder_of(attn, all_sites(attn), sizes)
    a_token, at_all = cached_sizes(attn, decoder.architecture.model, decoder.architecture.pe)
    assert a_token is not None
    assert at_all is not None
    for length in (LENGTH, 2 * LENGTH):
        cache = decoder.new_cache()
        fed(decoder, tokens(3, length), [length], cache)
        assert num_numbers(cache) == 3 * len(cache) * (at_all + length * a_token)
    kept = [*cache[0].rows.values(), *cache[0].states.values()]
    assert not any(tensor.requires_grad for tensor in kept)


@pytest.mark.parametrize(
    ("changes", "is_one"),
    [({}, True), ({"fraction": 0.5}, True), *((changes, False) for changes in APART)],
    ids=str,
)
@pytest.mark.parametrize("attn", SHARES, ids=str)
def test_one_rotation_has_one_row(
    attn: AttentionConfig, changes: dict[str, Any], is_one: bool
) -> None:
    """If both pairs always rotate alike, values are read from the keys' cached row."""
    decoder = decoder_of(attn, tuple("qkvo"), {}, **changes)
    cache = decoder.new_cache()
    decoder(tokens(1, LENGTH), cache=cache)
    assert all(set(layer.rows) == {"k"} for layer in cache) == is_one


@every_case
def test_the_gradient_is_the_slope(attn: AttentionConfig, sizes: dict[str, Any]) -> None:
    """Finite differences check the gradients of input and parameters, also across chunks."""
    layer = make_layer(attn, all_sites(attn), sizes=make_sizes(**sizes)).double()
    if isinstance(layer, StateAttention):
        layer.chunk_size = 5
    at = make_positions(LENGTH, layer.rotary_dim)
    names, parameters = zip(*layer.named_parameters(), strict=True)
    direction = normal(SIZES.hidden_size, seed=3)
    for document_BT in (None, DOCUMENTS) if attn.keeps_keys else (None,):

        def output(x_BTD: Tensor, *weights: Tensor, document_BT: Any = document_BT) -> Tensor:
            named = dict(zip(names, weights, strict=True))
            read = at._replace(document_BT=document_BT)
            out: Tensor = torch.func.functional_call(layer, named, (x_BTD, read))
            return out @ direction

        leaves = [normal(1, LENGTH, SIZES.hidden_size, seed=2), *(p.detach() for p in parameters)]
        leaves = [leaf.requires_grad_() for leaf in leaves]
        assert torch.autograd.gradcheck(output, leaves, fast_mode=True)


@every_case
@torch.no_grad()
def test_in_bf16_layer_and_cache_are_near(attn: AttentionConfig, sizes: dict[str, Any]) -> None:
    """A layer under autocast, past one chunk, keeps keys in bfloat16 and states in float32.

    After the projections, which both share, each path rounds at most eight times, and scores of
    size 1 count each rounding about once: the squares of sixteen errors add up to four times one.
    """
    length = 100
    sites = all_sites(attn)
    if getattr(attn, "form", None) == "both":
        # A rotated denominator may cancel to almost 0, and the quotient then has no correct digit.
        sites = ("v", "o")
    layer = make_layer(attn, sites, sizes=make_sizes(**sizes))
    x_BTD = normal(2, length, SIZES.hidden_size, seed=4).float()
    at = make_positions(length, layer.rotary_dim, dtype=torch.float32)
    exact = layer(x_BTD, at)

    cache = LayerCache()
    tokens_and_tables = zip(*(part.split(1, dim=-2) for part in (x_BTD, *at.qk)), strict=True)
    with torch.autocast("cpu", torch.bfloat16):
        whole = layer(x_BTD, at)
        outputs = [layer(x, Positions((cos, sin)), cache) for x, cos, sin in tokens_and_tables]
        ours = torch.cat(outputs, dim=1)

    assert ours.dtype == torch.bfloat16
    assert whole.dtype == torch.bfloat16
    assert float((whole.float() - exact).norm() / exact.norm()) < 0.03
    difference = (ours.double() - whole.double()).norm() / whole.double().norm()
    assert float(difference) < math.sqrt(16) * ROUNDING
    assert {tensor.dtype for tensor in cache.rows.values()} <= {torch.bfloat16}
    assert {tensor.dtype for tensor in cache.states.values()} <= {torch.float32}
    assert bool(cache.rows) == attn.keeps_keys


@pytest.mark.parametrize("attn", [kind for kind in KINDS if kind.keeps_keys], ids=str)
@pytest.mark.parametrize("bias", ["alibi", "t5"])
@torch.no_grad()
def test_kinds_with_keys_take_a_bias(attn: AttentionConfig, bias: str) -> None:
    """Cached decoding equals the full forward pass, and the bias changes the logits."""
    biased, plain = (decoder_of(attn, ("q", "k"), {}, bias=name) for name in (bias, "none"))
    ids_BT = tokens(2, LENGTH)
    whole = biased(ids_BT)
    assert deviation(fed(biased, ids_BT, [5, 1, 6]), whole) < TOLERANCE
    assert deviation(plain(ids_BT), whole) > 1e-3


@pytest.mark.parametrize("attn", [kind for kind in KINDS if kind.keeps_keys], ids=str)
@torch.no_grad()
def test_without_rotation_tokens_are_a_bag(attn: AttentionConfig) -> None:
    """Without a causal mask, logits are permutation-equivariant unless any site rotates.

    q and o rotate by the query's position, k and v by the key's, so each site encodes positions.
    """
    ids_BT = tokens(2, 30)
    order_T = torch.randperm(30, generator=torch.Generator().manual_seed(1))
    for sites in subsets_of(attn):
        decoder = decoder_of(attn, sites, {}, causal=False)
        moved = deviation(decoder(ids_BT[:, order_T]), decoder(ids_BT)[:, order_T])
        assert moved > 1e-2 if sites else moved < TOLERANCE


@every_case
def test_each_subset_keeps_its_law(attn: AttentionConfig, sizes: dict[str, Any]) -> None:
    """The certificate covers the shift, the cache, and the absorbed or parallel formula."""
    expected = {"cached"} | ({"absorbed"} if attn.kind == "latent" else set())
    expected |= set() if attn.keeps_keys else {"parallel"}
    for sites in subsets_of(attn):
        for window in (None, 3) if attn.keeps_keys else (None,):
            model = make_sizes(window=window, **sizes)
            checked = certificate(model, make_pe(*sites, start=3), attn)
            assert checked["measured"] == expected_class(sites)
            assert set(checked["formulas"]) == expected
    if attn.keeps_keys:
        # Masked language models and spikes attend both ways, and cache nothing.
        assert certificate(SIZES, make_pe("q", "k"), attn, causal=False)["formulas"] == {}


@pytest.mark.parametrize("attn", KINDS, ids=str)
@pytest.mark.parametrize("times", [-1, 0, 2], ids=["the other way", "not at all", "twice"])
def test_a_site_that_rotates_wrongly_is_refused(
    attn: AttentionConfig, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = Attention.rotate
    for pair in [pair for pair in PAIRS if tuple(pair) in subsets_of(attn)]:
        for wrong_site in pair:

            def wrong(
                self: Attention, site: str, x: Tensor, at: Positions, wrong_site: str = wrong_site
            ) -> Tensor:
                if site == wrong_site and times == -1:
                    cos, sin = at.tables(site)
                    at = Positions((cos, -sin))
                for _ in range(abs(times) if site == wrong_site else 1):
                    x = right(self, site, x, at)
                return x

            with monkeypatch.context() as patch:
                patch.setattr(Attention, "rotate", wrong)
                with pytest.raises(LawError, match="refusing to train"):
                    certificate(SIZES, make_pe(*pair), attn)


@pytest.mark.parametrize("changes", APART[:4], ids=str)
@pytest.mark.parametrize("attn", SHARES, ids=str)
def test_values_from_the_keys_row_are_refused(
    attn: AttentionConfig, changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The certificate detects values read from rotated keys, also with learned frequencies."""
    pe = make_pe(*"qkvo", **changes)
    assert certificate(SIZES, pe, attn)["measured"] == "invariant"
    for kind in ("latent", "shared"):
        monkeypatch.setattr(f"rope_exp.attn.{kind}.has_values_in_keys", lambda layer, at: True)
    with pytest.raises(LawError, match="the rotation of test is neither"):
        certificate(SIZES, pe, attn)
