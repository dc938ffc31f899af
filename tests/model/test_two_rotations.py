"""Tests of models in which v and o rotate by other frequencies than q and k, in every kind.

If keys and values share features, a row rotated for keys then cannot serve as values.
"""

import itertools
from typing import Any

import pytest
import torch
from support.kinds import KINDS, allowed
from support.models import BASE, SUBSETS, VOCAB, make_pe, make_sizes, tokens

from rope_exp.attention import Attention
from rope_exp.costs import kept as kept_of
from rope_exp.decoder import Decoder
from rope_exp.errors import LawError
from rope_exp.laws.certificate import certificate
from rope_exp.sections import Architecture, Kind

LENGTH = 20
SHIFT = 13
TOLERANCE = 1e-9
ROTATES_ALL = [attn for attn in KINDS if allowed(attn, "qkvo")]
# Kinds whose values are features of their keys.
SHARES = [
    attn
    for attn in ROTATES_ALL
    if getattr(attn, "value_rope", False) or getattr(attn, "form", None) == "s2"
]

APART: list[dict[str, Any]] = [
    {"base": 10_000.0, "base_vo": BASE},
    {"trainable": "log"},
    {"trainable": "raw", "trainable_scope": "layer"},
    {"trainable": "log", "trainable_scope": "head"},
    {"layers": (1, 0), "layers_vo": (0, 1)},
    {"layers": (1, 1), "layers_vo": (0, 1), "base_vo": 7.0},
]


def decoder_of(attn: Kind, *sites: str, **changes: Any) -> Decoder:
    """Return a float64 decoder with non-uniform attention and learned frequencies moved apart."""
    sizes = make_sizes(num_key_value_heads=2 if attn.takes_heads else 4)
    decoder = Decoder(Architecture(sizes, make_pe(*sites, **changes), VOCAB, attn))
    decoder.initialise(0)
    moved = {"inv_freq": 0.3, "inv_freq_vo": -0.4}
    with torch.no_grad():
        for name, parameter in decoder.named_parameters():
            frequencies = name.rpartition(".")[2]
            if frequencies in moved:
                parameter.add_(moved[frequencies])
            elif parameter.ndim == 2:
                parameter.mul_(12)
    return decoder.double().eval()


@pytest.mark.parametrize("changes", APART, ids=str)
@pytest.mark.parametrize("attn", ROTATES_ALL, ids=str)
@torch.no_grad()
def test_a_shift_changes_no_logit(attn: Kind, changes: dict[str, Any]) -> None:
    """Logits are the same at shifted positions, and from a cache."""
    decoder = decoder_of(attn, *"qkvo", **changes)
    ids_BT = tokens(2, LENGTH)
    whole = decoder(ids_BT)
    shifted = decoder(ids_BT, positions_BT=SHIFT + torch.arange(LENGTH)[None])
    assert float((shifted - whole).abs().max()) < TOLERANCE

    cache = decoder.new_cache()
    parts = [decoder(part, cache=cache) for part in ids_BT.split([8, 1, LENGTH - 9], dim=1)]
    assert float((torch.cat(parts, dim=1) - whole).abs().max()) < TOLERANCE


@pytest.mark.parametrize("attn", KINDS, ids=str)
@torch.no_grad()
def test_every_subset_is_cached_as_the_whole(attn: Kind) -> None:
    ids_BT = tokens(2, LENGTH)
    for sites in SUBSETS:
        if not allowed(attn, sites) or not {"v", "o"} & {*sites}:
            continue
        decoder = decoder_of(attn, *sites, base_vo=7.0)
        cache = decoder.new_cache()
        parts = [decoder(part, cache=cache) for part in ids_BT.split([9, 1, 10], dim=1)]
        ours = torch.cat(parts, dim=1)
        assert float((ours - decoder(ids_BT)).abs().max()) < TOLERANCE, sites


@pytest.mark.parametrize("changes", [*APART, {}], ids=str)
@pytest.mark.parametrize("attn", ROTATES_ALL, ids=str)
@torch.no_grad()
def test_a_cache_holds_what_the_config_says(attn: Kind, changes: dict[str, Any]) -> None:
    """`count.kept` returns the elements per token of the layer that keeps the most."""
    for sites in ("vo", "kv", "qkvo") if changes else ("", "qk", "vo", "qkvo"):
        decoder = decoder_of(attn, *sites, **changes)
        model = decoder.architecture.model
        cache = decoder.new_cache()
        decoder(tokens(3, LENGTH), cache=cache)
        kept = max(sum(row[0, 0].numel() for row in each.rows.values()) for each in cache.layers)
        assert kept == kept_of(attn, model, decoder.architecture.pe)[0], sites


def test_one_rotation_has_one_row() -> None:
    """If both pairs always rotate alike, values are read from the keys' cached row."""
    for attn, (changes, is_one) in itertools.product(
        SHARES, [({}, True), ({"fraction": 0.5}, True), *((each, False) for each in APART)]
    ):
        decoder = decoder_of(attn, *"qkvo", **changes)
        cache = decoder.new_cache()
        decoder(tokens(1, LENGTH), cache=cache)
        assert all(set(layer.rows) == {"k"} for layer in cache.layers) == is_one


@pytest.mark.parametrize("changes", APART[:4], ids=str)
@pytest.mark.parametrize("attn", SHARES, ids=str)
def test_values_from_the_keys_row_are_refused(
    attn: Kind, changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The certificate detects values read from rotated keys, also with learned frequencies."""
    sizes = make_sizes()
    pe = make_pe(*"qkvo", **changes)
    assert certificate(sizes, pe, attn)["measured"] == "invariant"
    monkeypatch.setattr(Attention, "has_values_in_keys", lambda self, at: True)
    with pytest.raises(LawError, match="the rotation of test is neither"):
        certificate(sizes, pe, attn)
