"""Tests of the probes of text against mathematics and plain loops over logits."""

import itertools
import math

import numpy as np
import pytest
import torch
from support.models import SUBSETS, make_decoder, opinionated
from support.probes import END, HELD_OUT, LENGTH, ask

from rope_exp.attention import split_heads
from rope_exp.attn._recurrence import for_queries
from rope_exp.attn.linear import Config as LinearConfig
from rope_exp.attn.linear import Layer as LinearAttention
from rope_exp.batches import next_tokens, validation_ids
from rope_exp.decoder import Decoder
from rope_exp.evaluate import held_out_loss
from rope_exp.probes._windows import attentions, bin_edges
from rope_exp.sections import DataConfig

# Both of q and k rotate or neither, and likewise v and o.
RELATIVE = [subset for subset in SUBSETS if subset in ((), ("q", "k"), ("v", "o"), tuple("qkvo"))]


def nats_by_hand(decoder: Decoder, ids: np.ndarray) -> list[float]:
    """Return -log p of each token of one window but the first, with plain float64 sums."""
    with torch.no_grad():
        logits_TV = decoder(torch.from_numpy(ids[None, :-1]))[0].tolist()
    nats = []
    for logits, target in zip(logits_TV, ids[1:], strict=True):
        largest = max(logits)
        total = sum(math.exp(logit - largest) for logit in logits)
        nats.append(largest + math.log(total) - logits[target])
    return nats


# -- windows and positions -----------------------------------------------------------------------


@pytest.mark.parametrize("at_once", [1, 5, 100])
def test_the_mean_over_windows_is_the_held_out_loss(at_once: int) -> None:
    """Each window's own loss also equals that of a plain loop over its logits."""
    decoder = opinionated("q", "k")
    losses = ask(decoder, "windows", at_once=at_once)["loss"]

    windows_NT = validation_ids(HELD_OUT, 16, LENGTH)
    whole = held_out_loss(
        decoder, next_tokens(windows_NT), micro_batch_size=at_once, device=torch.device("cpu")
    )
    assert len(losses) == len(windows_NT) == 16
    assert np.mean(losses) == pytest.approx(whole, abs=1e-5)
    for loss, ids in zip(losses, windows_NT, strict=True):
        assert loss == pytest.approx(np.mean(nats_by_hand(decoder, ids)), abs=1e-5)


def test_losses_by_position_are_those_of_a_plain_loop() -> None:
    """Windows are eight training lengths long. The loss at a length needs no tokens past that
    length, because the decoder is causal.
    """
    decoder = opinionated("q", "k", "v")
    found = ask(decoder, "positions")

    # 16 windows of the training length are 2 of eight lengths: of three, those at n * 3 // 2,
    # which are the first and the second.
    long = 8 * LENGTH
    windows = [HELD_OUT[start : start + long + 1] for start in (0, long)]
    by_hand = np.mean([nats_by_hand(decoder, ids) for ids in windows], axis=0)
    assert found["num_windows"] == 2

    edges = found["edges"]
    expected = [by_hand[first:last].mean() for first, last in itertools.pairwise(edges)]
    assert (edges[0], edges[-1]) == (0, long)
    assert found["loss"] == pytest.approx(expected, abs=1e-5)

    assert found["lengths"] == [16, 32, 64, 128]
    for length, loss in zip(found["lengths"], found["loss_at_length"], strict=True):
        beginnings = [nats_by_hand(decoder, ids[: length + 1]) for ids in windows]
        assert loss == pytest.approx(np.mean(beginnings), abs=1e-5)


@pytest.mark.parametrize(
    ("num_tokens", "lengths"),
    [
        (17, [16]), (32, [16]), (33, [16, 32]), (100, [16, 32, 64]), (128, [16, 32, 64]),
        (129, [16, 32, 64, 128]), (5000, [16, 32, 64, 128]),
    ],
)  # fmt: skip
def test_a_short_held_out_set_has_shorter_windows(num_tokens: int, lengths: list[int]) -> None:
    """A window of n predictions needs n + 1 tokens. A set too short for 8 training lengths is read
    in windows of 4, 2 or 1.
    """
    held_out = HELD_OUT[:num_tokens]
    if num_tokens > len(HELD_OUT):
        held_out = np.tile(HELD_OUT, 20)[:num_tokens]
    found = ask(opinionated("q"), "positions", held_out)
    assert found["lengths"] == lengths
    assert found["edges"][-1] == lengths[-1]
    assert found["num_windows"] == min(16 // (lengths[-1] // 16), (num_tokens - 1) // lengths[-1])


def test_bins_grow_by_half_an_octave() -> None:
    assert bin_edges(16) == [0, 1, 2, 3, 4, 6, 8, 11, 16]
    assert bin_edges(17)[-2:] == [16, 17]
    assert bin_edges(1) == [0, 1]


# -- shift ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("rotate", SUBSETS, ids="".join)
def test_only_absolute_variants_feel_a_shift(rotate: tuple[str, ...]) -> None:
    """If both or neither of q and k rotate, and of v and o, a shift cancels in every product:
    R_i^T R_j is a function of j - i. Otherwise an angle remains, and the loss changes.
    """
    found = ask(opinionated(*rotate), "shift")
    assert found["start"] == [0, 4, 16, 64, 256]
    moved = max(abs(loss - found["loss"][0]) for loss in found["loss"])
    if rotate in RELATIVE:
        assert moved < 1e-4
    else:
        assert moved > 1e-3


# -- documents -----------------------------------------------------------------------------------

DOCUMENTS = DataConfig(reset_positions=True, document_mask=True)


def nats_by_document(decoder: Decoder, ids: np.ndarray) -> list[float]:
    """Return `nats_by_hand` of a window in which each document is read by itself."""
    begins = [0, *(np.flatnonzero(ids[1:-1] == END) + 1), len(ids) - 1]
    parts = [ids[first : last + 1] for first, last in itertools.pairwise(begins)]
    return [nat for part in parts for nat in nats_by_hand(decoder, part)]


@pytest.mark.parametrize("name", ["windows", "positions"])
def test_windows_hold_documents_as_in_training(name: str) -> None:
    """At any window length, the loss is that of documents read alone."""
    decoder = opinionated("q", "v")
    found = ask(decoder, name, data=DOCUMENTS)["loss"]

    count, length = (16, LENGTH) if name == "windows" else (2, 8 * LENGTH)
    windows_NT = validation_ids(HELD_OUT, count, length)
    assert (windows_NT[:, 1:-1] == END).any()
    nats_NT = np.array([nats_by_document(decoder, ids) for ids in windows_NT])
    if name == "windows":
        assert found == pytest.approx(nats_NT.mean(axis=1), abs=1e-5)
    else:
        edges = bin_edges(length)
        expected = [nats_NT[:, a:b].mean() for a, b in itertools.pairwise(edges)]
        assert found == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(("start", "data"), [(3, DataConfig()), (0, DOCUMENTS)], ids=str)
def test_a_shift_is_a_model_that_starts_there(start: int, data: DataConfig) -> None:
    """The reference has the same weights, and a higher `start`, at which each document begins."""
    found = ask(opinionated("k", "v", start=start), "shift", data=data)
    for shift, loss in zip(found["start"], found["loss"], strict=True):
        other = opinionated("k", "v", start=start + shift)
        assert ask(other, "shift", data=data)["loss"][0] == pytest.approx(loss, abs=1e-6)


# -- ablation ------------------------------------------------------------------------------------


@pytest.mark.parametrize("rotate", [(), ("v",), ("q", "k"), tuple("qkvo")], ids="".join)
def test_without_a_site_is_a_model_built_without(rotate: tuple[str, ...]) -> None:
    """The variants have the same parameters, so the weights of one load into the other."""
    decoder = opinionated(*rotate)
    found = ask(decoder, "ablation")
    assert found["without"] == ["", *sorted(rotate)]

    for site, loss in zip(found["without"], found["loss"], strict=True):
        other = make_decoder(*(each for each in rotate if each != site), seed=9)
        other.load_state_dict(decoder.state_dict())
        windows_NT = validation_ids(HELD_OUT, 16 // 4, LENGTH)
        expected = held_out_loss(
            other, next_tokens(windows_NT), micro_batch_size=3, device=torch.device("cpu")
        )
        assert loss == pytest.approx(expected, abs=1e-5)
    assert len(set(found["loss"])) == len(found["loss"])


def test_sites_that_rotate_in_some_layers_are_switched_off() -> None:
    """Here q and k rotate only in the second layer, and v and o only in the first."""
    decoder = opinionated(*"qkvo", layers=(0, 1), layers_vo=(1, 0))
    assert ask(decoder, "ablation")["without"] == ["", "k", "o", "q", "v"]


# -- repeat --------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [LENGTH, 5])
def test_both_readings_are_those_of_a_plain_loop(length: int) -> None:
    """Both readings omit the text's first token, and the second directly follows the first."""
    decoder = opinionated("q", "k")
    found = ask(decoder, "repeat", train={"seq_len": length})

    half = length // 2
    texts = [ids[:half] for ids in validation_ids(HELD_OUT, 4, half)]
    twice = np.array([nats_by_hand(decoder, np.tile(text, 2)) for text in texts])
    assert found["reading"] == [1, 2]
    expected = [twice[:, : half - 1].mean(), twice[:, half:].mean()]
    assert found["loss"] == pytest.approx(expected, abs=1e-5)


# -- floors ---------------------------------------------------------------------------------------


def test_the_floors_are_counted_one_by_one() -> None:
    """The first layer's share, with a rotated denominator, is counted from explicit sums."""
    decoder = linear_decoder(LinearConfig(form="both"))
    layer = attentions(decoder)[0]
    assert isinstance(layer, LinearAttention)
    found = ask(decoder, "floors")["share"][0]

    ids_NT = torch.from_numpy(validation_ids(HELD_OUT, 4, LENGTH))[:, :-1]
    block = decoder.model.layers[0]
    x_BTD = block.input_layernorm(decoder.model.embed_tokens(ids_NT))
    projected = (layer.q_proj(x_BTD), layer.k_proj(x_BTD))
    q, k = (layer._feature(split_heads(each, layer.head_dim)) for each in projected)
    at = decoder.model.rotary_emb(torch.arange(LENGTH))[0]
    q, k = layer.turn("q", q, at), for_queries(layer.turn("k", k, at), layer.num_heads)
    similarity_BHTT = torch.einsum("bihk,bjhk->bhij", q, k).tril()
    expected = (similarity_BHTT.sum(dim=-1) < layer.attn.eps).double().mean()
    assert 0 < found < 1
    assert found == pytest.approx(float(expected), abs=1e-6)


def linear_decoder(attn: LinearConfig) -> Decoder:
    return opinionated("q", "k", attn=attn).eval()
