"""Tests of token shift, in which keys and values mix in the previous token."""

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from support.kinds import make_layer
from support.models import (
    SIZES,
    SUBSETS,
    make_decoder,
    make_pe,
    make_positions,
    make_sizes,
    normal,
    num_numbers,
    rotation_matrix,
    tokens,
)
from torch import Tensor

from rope_exp import attention as softmax
from rope_exp.attention import Attention, Cache
from rope_exp.costs import kept as kept_of
from rope_exp.decoder import Decoder, llama_weights, weights, weights_sha256
from rope_exp.errors import LawError
from rope_exp.laws.certificate import certificate, expected_class
from rope_exp.sections import SoftmaxConfig

LENGTH = 12
DOCUMENTS = [3, 3, 3, 3, 8, 8, 9, 3, 3, 3, 3, 3]
TOLERANCE = 1e-10
SHIFTED = make_sizes(token_shift=True)


@torch.no_grad()
def layer_of(sites: Sequence[str], **changes: Any) -> Attention:
    """Return one float64 layer with a different mu for each feature."""
    layer = make_layer(SoftmaxConfig(), sites, sizes=make_sizes(token_shift=True, **changes))
    mu_D = torch.linspace(-0.3, 1.2, SIZES.hidden_size)
    layer.get_parameter("token_shift").copy_(mu_D)
    return layer.double()


@torch.no_grad()
def decoder_of(*sites: str, **changes: Any) -> Decoder:
    """Return a float64 decoder with non-uniform attention and a different mu in each layer."""
    decoder = make_decoder(*sites, sizes=make_sizes(token_shift=True, **changes))
    for name, parameter in decoder.named_parameters():
        if parameter.ndim == 2:
            parameter.mul_(8)
        if name.endswith("token_shift"):
            generator = torch.Generator().manual_seed(len(name) + int(name.split(".")[2]))
            parameter.uniform_(0, 1, generator=generator)
    return decoder.double().eval()


def fed(decoder: Decoder, ids_BT: Tensor, parts: list[int], cache: Cache | None = None) -> Tensor:
    """Return the logits of ids that are fed to a cache in parts."""
    cache = cache or decoder.new_cache()
    return torch.cat([decoder(part, cache=cache) for part in ids_BT.split(parts, dim=1)], dim=1)


# -- against a loop over tokens --------------------------------------------------------------------


def by_loop(
    layer: Attention,
    sites: Sequence[str],
    x_TD: Tensor,
    documents: Sequence[int],
    window: int | None = None,
) -> Tensor:
    """Return the output of one row by dense rotations, one token and head at a time."""
    named = {name: parameter.detach() for name, parameter in layer.named_parameters()}
    mu_D = named["token_shift"]
    heads = SIZES.num_attention_heads
    shared = heads // SIZES.num_key_value_heads
    dim = SIZES.features_per_head

    def turned(site: str, position: int, x_K: Tensor) -> Tensor:
        matrix = rotation_matrix(position, dim)
        matrix = matrix.T if site == "o" else matrix
        return matrix @ x_K if site in sites else x_K

    def head(site: str, number: int, x_D: Tensor) -> Tensor:
        rows = slice(number * dim, (number + 1) * dim)
        return named[f"{site}_proj.weight"][rows] @ x_D

    mixed = []
    for t, x_D in enumerate(x_TD):
        begins = t == 0 or documents[t - 1] != documents[t]
        before_D = x_D if begins else x_TD[t - 1]
        mixed.append((1 - mu_D) * x_D + mu_D * before_D)

    outputs = []
    for i, x_D in enumerate(x_TD):
        met = [j for j in range(i + 1) if documents[j] == documents[i]]
        met = [j for j in met if window is None or i - j < window]
        of_heads = []
        for h in range(heads):
            q_K = turned("q", i, head("q", h, x_D))
            keys = [turned("k", j, head("k", h // shared, mixed[j])) for j in met]
            values = [turned("v", j, head("v", h // shared, mixed[j])) for j in met]
            exps = [math.exp(float(q_K @ k_K) / math.sqrt(dim)) for k_K in keys]
            weighed = [exp / sum(exps) * v_K for exp, v_K in zip(exps, values, strict=True)]
            of_heads.append(turned("o", i, torch.stack(weighed).sum(dim=0)))
        outputs.append(named["o_proj.weight"] @ torch.cat(of_heads))
    return torch.stack(outputs)


@pytest.mark.parametrize("sites", [(), ("q", "k"), ("v", "o"), ("k",), tuple("qkvo")], ids="".join)
@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("documents", [[0] * LENGTH, DOCUMENTS], ids=["one", "many"])
@torch.no_grad()
def test_a_layer_is_the_loop_over_tokens(
    sites: tuple[str, ...], window: int | None, documents: list[int]
) -> None:
    """The layer has grouped heads; one of the documents is a single token."""
    layer = layer_of(sites, window=window)
    x_BTD = normal(2, LENGTH, SIZES.hidden_size, seed=4)
    document_BT = torch.tensor([documents, documents]) if len(set(documents)) > 1 else None
    at = make_positions(LENGTH, layer.rotary_dim)._replace(document_BT=document_BT)

    ours = layer(x_BTD, at)
    for row, x_TD in enumerate(x_BTD):
        expected = by_loop(layer, sites, x_TD, documents, window)
        assert float((ours[row] - expected).abs().max()) < TOLERANCE


@pytest.mark.parametrize("sites", [(), tuple("qkvo")], ids="".join)
@torch.no_grad()
def test_without_a_share_there_is_no_shift(sites: tuple[str, ...]) -> None:
    """With mu = 0 the layer is plain attention, and with another mu it is not."""
    shifted = layer_of(sites)
    plain = make_layer(SoftmaxConfig(), sites).double()
    x_BTD = normal(1, LENGTH, SIZES.hidden_size, seed=4)
    at = make_positions(LENGTH, plain.rotary_dim)
    assert float((shifted(x_BTD, at) - plain(x_BTD, at)).abs().max()) > 1e-2

    shifted.get_parameter("token_shift").zero_()
    assert float((shifted(x_BTD, at) - plain(x_BTD, at)).abs().max()) < TOLERANCE


# -- the cache -------------------------------------------------------------------------------------


@pytest.mark.parametrize("window", [None, 1, 5])
@pytest.mark.parametrize("sites", [(), ("q", "k"), ("v",), tuple("qkvo")], ids="".join)
@torch.no_grad()
def test_any_parts_are_the_whole(sites: tuple[str, ...], window: int | None) -> None:
    decoder = decoder_of(*sites, window=window)
    ids_BT = tokens(2, LENGTH)
    whole = decoder(ids_BT)
    for parts in ([1] * LENGTH, [5, 1, 1, 5], [LENGTH], [11, 1]):
        ours = fed(decoder, ids_BT, parts)
        assert float((ours - whole).abs().max()) < TOLERANCE, parts


@pytest.mark.parametrize("window", [None, 1, 5])
@pytest.mark.parametrize("parts", [[8, 1, 3], [1] * LENGTH, [3, 4, 5], [LENGTH]], ids=str)
@torch.no_grad()
def test_padding_is_nobodys_predecessor(window: int | None, parts: list[int]) -> None:
    """Each row has the logits that it has alone, also if padding ends where a part ends."""
    pads = [0, 3, 7, 11]
    decoder = decoder_of("q", "v", window=window)
    ids_BT = tokens(4, LENGTH)
    ours = fed(decoder, ids_BT, parts, decoder.new_cache(pads_B=torch.tensor(pads)))
    assert bool(ours.isfinite().all())
    for row, pad in enumerate(pads):
        alone = decoder(ids_BT[row : row + 1, pad:])
        assert float((ours[row, pad:] - alone[0]).abs().max()) < TOLERANCE, pad


@torch.no_grad()
def test_one_input_a_layer_is_kept() -> None:
    """The kept input is counted, and is a copy that retains neither the prompt nor a gradient."""
    decoder = decoder_of("q", "k")
    attn = decoder.architecture.attn
    sizes = decoder.architecture.model
    a_token, at_all = kept_of(attn, sizes, decoder.architecture.pe)
    assert at_all == sizes.hidden_size
    for length in (1, LENGTH):
        cache = decoder.new_cache()
        fed(decoder, tokens(3, length), [length], cache)
        a_layer = 3 * (sizes.hidden_size + length * a_token)
        assert num_numbers(cache) == sizes.num_hidden_layers * a_layer

    kept = cache.layers[0].states[softmax.NEWEST]
    assert kept.untyped_storage().nbytes() == 3 * sizes.hidden_size * 8
    with torch.enable_grad():
        decoder(tokens(3, 2), cache=cache)
    assert not cache.layers[0].states[softmax.NEWEST].requires_grad


# -- gradients, compiler, precision ----------------------------------------------------------------


@pytest.mark.parametrize("documents", [None, [DOCUMENTS]], ids=["one", "many"])
def test_the_gradient_is_the_slope(documents: list[list[int]] | None) -> None:
    """Finite differences check the gradients of the input, mu and every other parameter."""
    sites = tuple("qkvo")
    layer = layer_of(sites)
    document_BT = None if documents is None else torch.tensor(documents)
    at = make_positions(LENGTH, layer.rotary_dim)._replace(document_BT=document_BT)
    names, parameters = zip(*layer.named_parameters(), strict=True)
    assert "token_shift" in names

    def output(x_BTD: Tensor, *values: Tensor) -> Tensor:
        named = dict(zip(names, values, strict=True))
        out: Tensor = torch.func.functional_call(layer, named, (x_BTD, at))
        return out @ normal(SIZES.hidden_size, seed=3)

    x_BTD = normal(1, LENGTH, SIZES.hidden_size, seed=2)
    leaves = [x_BTD, *(parameter.detach() for parameter in parameters)]
    leaves = [leaf.requires_grad_() for leaf in leaves]
    assert torch.autograd.gradcheck(output, leaves, fast_mode=True)


@torch.no_grad()
def test_under_autocast_it_is_near_float32() -> None:
    """The mix and the cached input keep the input's own precision."""
    layer = layer_of("qkvo").float()
    x_BTD = normal(2, 24, SIZES.hidden_size).float()
    at = make_positions(24, layer.rotary_dim, dtype=torch.float32)
    wide = layer(x_BTD, at)
    cache = Cache([None]).layers[0]
    with torch.autocast("cpu", torch.bfloat16):
        narrow = layer(x_BTD, at, cache)
    assert narrow.dtype == torch.bfloat16
    assert cache.states[softmax.NEWEST].dtype == torch.float32
    assert float((narrow.float() - wide).norm() / wide.norm()) < 0.02


# -- laws ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("window", [None, 3])
def test_every_subset_keeps_its_law(window: int | None) -> None:
    """Token shift changes no variant's law, because the mix does not depend on positions."""
    sizes = make_sizes(token_shift=True, window=window)
    for sites in SUBSETS:
        checked = certificate(sizes, make_pe(*sites, start=3))
        assert checked["measured"] == expected_class(sites)
        assert set(checked["formulas"]) == {"cached"}


def test_a_cache_that_forgets_the_newest_input_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    previous = softmax.previous
    monkeypatch.setattr(softmax, "previous", lambda x_BTD, at, cache: previous(x_BTD, at))
    with pytest.raises(LawError, match="computed as cached is not what training computes"):
        certificate(SHIFTED, make_pe("q", "k"))


# -- weights ---------------------------------------------------------------------------------------


def test_it_draws_nothing_and_moves_no_other_weight() -> None:
    plain = make_decoder("q", "k", seed=3)
    shifted = make_decoder("q", "k", seed=3, sizes=SHIFTED)
    of_plain = weights(plain)
    of_shifted = weights(shifted)
    added = sorted(of_shifted.keys() - of_plain.keys())
    assert added == [f"model.layers.{layer}.self_attn.token_shift" for layer in (0, 1)]
    for name in added:
        assert torch.equal(of_shifted.pop(name), torch.full((SIZES.hidden_size,), 0.5))
    assert weights_sha256(of_shifted) == weights_sha256(of_plain)
    assert weights_sha256(llama_weights(shifted)) == weights_sha256(llama_weights(plain))
