"""What holds for every position encoding: of rope_exp/position, and files of a user's own."""

from typing import Any

import pytest
import torch
from support.kinds import sizes_for
from support.models import SIZES, VOCAB, deviation, fed, make_decoder, make_pe, tokens
from support.own import example

from rope_exp.config import Architecture
from rope_exp.decoder import Decoder, llama_weights, weights, weights_sha256
from rope_exp.identity import choice_names
from rope_exp.laws import certificate
from rope_exp.position._encoding import Position
from rope_exp.sections import SOFTMAX, PeConfig

LENGTH = 12
TOLERANCE = 1e-9
ADDED: dict[str, dict[str, Any]] = {
    "sinusoidal": {"input": "sinusoidal"},
    "learned": {"input": "learned"},
    "alibi": {"bias": "alibi"},
    "t5": {"bias": "t5"},
    "learned and t5": {"input": "learned", "bias": "t5"},
}
TRAINED: dict[str, dict[str, Any]] = {
    f"trainable {how} {scope}": {"trainable": how, "trainable_scope": scope}
    for how in ("raw", "log")
    for scope in ("model", "layer", "head")
}
EXAMPLES = ("Wave", "Forget", "Tide", "Polar")
WITHOUT_PARAMETERS = ("sinusoidal", "alibi", "Wave")
ALL = [*ADDED, *TRAINED, *EXAMPLES]


def pe_of(name: str, *rotate: str, **changes: Any) -> PeConfig:
    if name in EXAMPLES:
        return example(name, *rotate, **changes)
    return make_pe(*rotate, **(ADDED | TRAINED)[name], **changes)


@torch.no_grad()
def decoder_of(pe: PeConfig, *, causal: bool = True, window: int | None = None) -> Decoder:
    """Return a float64 decoder in which positions matter; learned frequencies are moved apart."""
    sizes = sizes_for(SOFTMAX, window=window)
    decoder = Decoder(Architecture(sizes, pe, VOCAB, causal=causal, num_positions=64))
    decoder.initialise(0)
    for number, (name, parameter) in enumerate(decoder.named_parameters()):
        if "inv_freq" in name:
            parameter.mul_(1.2).add_(
                0.1 * torch.linspace(-1, 1, parameter.numel()).view_as(parameter)
            )
        elif parameter.ndim == 2:
            parameter.mul_(10)
        elif ".own." in name:
            parameter.sub_(0.1 * number % 1)
    return decoder.double().eval()


def test_every_file_is_covered() -> None:
    assert {*ADDED} - {"learned and t5"} == {*choice_names("position")}


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("window", [None, 4])
@torch.no_grad()
def test_cached_as_the_whole(name: str, window: int | None) -> None:
    """Cached logits do not depend on the parts, with any rotation."""
    ids_BT = tokens(2, LENGTH)
    for rotate in ((), tuple("qkvo")):
        decoder = decoder_of(pe_of(name, *rotate, start=5), window=window)
        whole = decoder(ids_BT)
        for parts in ([1] * LENGTH, [5, 1, 1, 5], [LENGTH]):
            assert deviation(fed(decoder, ids_BT, parts), whole) < TOLERANCE, (rotate, parts)


@pytest.mark.parametrize("name", ALL)
@torch.no_grad()
def test_a_shift_and_the_law_are_as_stated(name: str) -> None:
    decoder = decoder_of(pe_of(name, "v", "o"))
    ids_BT = tokens(2, LENGTH)
    there = torch.arange(LENGTH).expand(2, -1) + 11
    moved = deviation(decoder(ids_BT, position_BT=there), decoder(ids_BT))
    stated = [module.relative for module in decoder.modules() if isinstance(module, Position)]
    expected = None
    if None not in stated:
        expected = "invariant" if all(stated) else "changed"
        assert moved < 1e-5 if expected == "invariant" else moved > 1e-3
    measured = certificate(SIZES, pe_of(name, "v", "o"))["decoder"]
    assert measured["expected"] == expected
    assert measured.get("cached", 0.0) < TOLERANCE


@pytest.mark.parametrize("name", ALL)
@torch.no_grad()
def test_a_document_is_read_as_if_alone(name: str) -> None:
    decoder = decoder_of(pe_of(name, "v", "o"))
    ids_BT = tokens(1, LENGTH)
    place_BT = torch.cat([torch.arange(5), torch.arange(LENGTH - 5)])[None]
    number_BT = (torch.arange(LENGTH) >= 5).long()[None]
    whole = decoder(ids_BT, position_BT=place_BT, document_BT=number_BT)
    for part in (slice(0, 5), slice(5, None)):
        assert deviation(whole[:, part], decoder(ids_BT[:, part])) < TOLERANCE
    assert deviation(decoder(ids_BT), whole) > 1e-3


@pytest.mark.parametrize("name", [*ADDED, *EXAMPLES])
@torch.no_grad()
def test_both_ways_it_tells_places_apart(name: str) -> None:
    decoder = decoder_of(pe_of(name), causal=False)
    ids_BT = tokens(2, 30)
    order_T = torch.randperm(30, generator=torch.Generator().manual_seed(1))
    assert deviation(decoder(ids_BT[:, order_T]), decoder(ids_BT)[:, order_T]) > 1e-2


@pytest.mark.parametrize("name", ALL)
def test_its_parameters_learn_and_move_no_others(name: str) -> None:
    """The hash that must be equal for all variants covers none of a variant's own parameters."""
    plain = make_decoder("v")
    decoder = Decoder(Architecture(SIZES, pe_of(name, "v"), VOCAB, num_positions=20))
    decoder.initialise(0)
    assert llama_weights(decoder).keys() == weights(plain).keys()
    assert weights_sha256(llama_weights(decoder)) == weights_sha256(weights(plain))

    decoder(tokens(2, LENGTH), tokens(2, LENGTH, seed=1)).backward()
    own = {
        key: parameter for key, parameter in decoder.named_parameters() if key not in weights(plain)
    }
    assert bool(own) == (name not in WITHOUT_PARAMETERS)
    assert all(x.grad is not None and bool(x.grad.any()) for x in own.values())
