"""Tests of token shift, in which keys and values mix in the previous token."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from support.kinds import make_layer
from support.models import (
    SIZES,
    make_decoder,
    make_pe,
    make_positions,
    make_sizes,
    normal,
    num_numbers,
    tokens,
)
from torch import Tensor

from rope_exp import attention as softmax
from rope_exp.attention import Attention, Cache
from rope_exp.costs import kept as kept_of
from rope_exp.decoder import Decoder, llama_weights, weights, weights_sha256
from rope_exp.errors import LawError
from rope_exp.laws.certificate import certificate
from rope_exp.sections import SoftmaxConfig

LENGTH = 12
TOLERANCE = 1e-10
SHIFTED = make_sizes(token_shift=True)


@torch.no_grad()
def layer_of(sites: Sequence[str], **changes: Any) -> Attention:
    """Return one float64 layer with a different mu for each feature."""
    sizes = make_sizes(token_shift=True, **changes)
    return make_layer(SoftmaxConfig(), sites, sizes=sizes).double()


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


# -- laws ------------------------------------------------------------------------------------------


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
