"""Tests of the cache with windows, biases and documents."""

import pytest
import torch
from support.models import (
    make_sizes,
    num_numbers,
    opinionated,
    tokens,
)
from torch import Tensor

from rope_exp.attention import Cache
from rope_exp.decoder import Decoder
from rope_exp.sections import SoftmaxConfig

LENGTH = 12
TOLERANCE = 1e-10


def fed(decoder: Decoder, ids_BT: Tensor, parts: list[int], cache: Cache | None = None) -> Tensor:
    """Return the logits of ids that are fed to a cache in parts."""
    cache = cache or decoder.new_cache()
    return torch.cat([decoder(part, cache=cache) for part in ids_BT.split(parts, dim=1)], dim=1)


@torch.no_grad()
def test_a_window_of_one_key_has_its_own_bias() -> None:
    """A sink beside it shows the bias, which a softmax over one key would hide."""
    sizes = make_sizes(window=1)
    attn = SoftmaxConfig(sink=True)
    decoder = opinionated("v", "o", attn=attn, sizes=sizes, scale=8, bias="alibi").double()
    ids_BT = tokens(2, LENGTH)
    whole = decoder(ids_BT)
    for parts in ([1] * LENGTH, [5, 1, 6]):
        assert float((fed(decoder, ids_BT, parts) - whole).abs().max()) < TOLERANCE, parts


def test_documents_beside_a_cache_are_refused() -> None:
    """Nothing may be cached, because later tokens would attend to other documents' keys."""
    decoder = opinionated("q", "k")
    cache = decoder.new_cache()
    with pytest.raises(ValueError, match="documents take the whole rows at once"):
        decoder(tokens(1, LENGTH), cache=cache, document_BT=torch.zeros(1, LENGTH))
    assert cache.length == 0 == num_numbers(cache)


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
