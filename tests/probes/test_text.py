"""Tests of the probes of text against mathematics and plain loops over logits."""

import itertools

import numpy as np
import pytest
import torch
from support.models import SUBSETS, make_decoder, opinionated
from support.probes import END, HELD_OUT, LENGTH, ask

from rope_exp.attention import split_heads
from rope_exp.attn.linear import Config as LinearConfig
from rope_exp.attn.linear import Layer as LinearAttention
from rope_exp.batches import validation_ids
from rope_exp.decoder import Decoder
from rope_exp.probes._windows import attentions, bin_edges
from rope_exp.sections import DataConfig

DOCUMENTS = DataConfig(reset_positions=True, document_mask=True)
each_data = pytest.mark.parametrize("data", [DataConfig(), DOCUMENTS], ids=["text", "documents"])


@torch.no_grad()
def by_hand(decoder: Decoder, ids: np.ndarray, data: DataConfig | None = None) -> list[float]:
    """Return -log p of each token of one window but the first, of each document read alone."""
    begins = [0]
    if data == DOCUMENTS:
        begins += (np.flatnonzero(ids[1:-1] == END) + 1).tolist()
    nats: list[float] = []
    for first, last in itertools.pairwise([*begins, len(ids) - 1]):
        part = torch.from_numpy(ids[first : last + 1].astype(np.int64))
        log_p_TV = decoder(part[None, :-1])[0].double().log_softmax(-1)
        nats += (-log_p_TV.gather(1, part[1:, None])).flatten().tolist()
    return nats


@pytest.mark.parametrize("at_once", [1, 5, 100])
@each_data
def test_losses_of_windows_are_those_of_a_plain_loop(data: DataConfig, at_once: int) -> None:
    decoder = opinionated("q", "k", "v")
    losses = ask(decoder, "windows", at_once=at_once, data=data)["loss"]
    windows_NS = validation_ids(HELD_OUT, 16, LENGTH)
    expected = [np.mean(by_hand(decoder, ids, data)) for ids in windows_NS]
    assert losses == pytest.approx(expected, abs=1e-5)


@each_data
def test_losses_by_position_are_those_of_a_plain_loop(data: DataConfig) -> None:
    """Windows are eight training lengths long. The loss at a length needs no later tokens."""
    decoder = opinionated("q", "k", "v")
    found = ask(decoder, "positions", data=data)

    # 16 windows of the training length are 2 of eight lengths: of three, the first and the second.
    long = 8 * LENGTH
    nats_NT = np.array([by_hand(decoder, HELD_OUT[i : i + long + 1], data) for i in (0, long)])
    assert found["num_windows"] == 2
    edges = found["edges"]
    assert edges[0] == 0
    assert edges[-1] == long
    expected = [nats_NT[:, first:last].mean() for first, last in itertools.pairwise(edges)]
    assert found["loss"] == pytest.approx(expected, abs=1e-5)
    assert found["lengths"] == [16, 32, 64, 128]
    expected = [nats_NT[:, :length].mean() for length in found["lengths"]]
    assert found["loss_at_length"] == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(
    ("num_tokens", "longest"), [(17, 16), (32, 16), (33, 32), (128, 64), (129, 128), (5000, 128)]
)
def test_a_short_held_out_set_has_shorter_windows(num_tokens: int, longest: int) -> None:
    """A window of n predictions needs n + 1 tokens; it has 8, 4, 2 or 1 training lengths."""
    found = ask(opinionated("q"), "positions", np.resize(HELD_OUT, num_tokens))
    assert found["lengths"] == [length for length in (16, 32, 64, 128) if length <= longest]
    assert found["edges"][-1] == longest
    assert found["num_windows"] == min(256 // longest, (num_tokens - 1) // longest)


def test_bins_grow_by_half_an_octave() -> None:
    assert bin_edges(16) == [0, 1, 2, 3, 4, 6, 8, 11, 16]
    assert bin_edges(17)[-2:] == [16, 17]
    assert bin_edges(1) == [0, 1]


@pytest.mark.parametrize("rotate", SUBSETS, ids="".join)
def test_only_absolute_variants_feel_a_shift(rotate: tuple[str, ...]) -> None:
    """If both or neither of q and k rotate, and of v and o, a shift cancels in every product:
    R_i^T R_j is a function of j - i. Otherwise an angle remains, and the loss changes.
    """
    found = ask(opinionated(*rotate), "shift")
    assert found["start"] == [0, 4, 16, 64, 256]
    moved = max(abs(loss - found["loss"][0]) for loss in found["loss"])
    is_relative = ("q" in rotate) == ("k" in rotate) and ("v" in rotate) == ("o" in rotate)
    assert moved < 1e-4 if is_relative else moved > 1e-3


@pytest.mark.parametrize(("start", "data"), [(3, DataConfig()), (0, DOCUMENTS)], ids=str)
def test_a_shift_is_a_model_that_starts_there(start: int, data: DataConfig) -> None:
    """The reference has the same weights, and a higher `start`, at which each document begins."""
    found = ask(opinionated("k", "v", start=start), "shift", data=data)
    for shift, loss in zip(found["start"], found["loss"], strict=True):
        other = opinionated("k", "v", start=start + shift)
        assert ask(other, "shift", data=data)["loss"][0] == pytest.approx(loss, abs=1e-6)


@pytest.mark.parametrize("rotate", [(), ("v",), ("q", "k"), tuple("qkvo")], ids="".join)
def test_without_a_site_is_a_model_built_without(rotate: tuple[str, ...]) -> None:
    """The variants have the same parameters, so the weights of one load into the other."""
    decoder = opinionated(*rotate)
    found = ask(decoder, "ablation")
    assert found["without"] == ["", *sorted(rotate)]
    assert len(set(found["loss"])) == len(found["loss"])
    for site, loss in zip(found["without"], found["loss"], strict=True):
        other = make_decoder(*(each for each in rotate if each != site), seed=9)
        other.load_state_dict(decoder.state_dict())
        expected = np.mean([by_hand(other, ids) for ids in validation_ids(HELD_OUT, 4, LENGTH)])
        assert loss == pytest.approx(expected, abs=1e-5)


def test_sites_that_rotate_in_some_layers_are_switched_off() -> None:
    """Here q and k rotate only in the second layer, and v and o only in the first."""
    decoder = opinionated(*"qkvo", layers=(0, 1), layers_vo=(1, 0))
    assert ask(decoder, "ablation")["without"] == ["", "k", "o", "q", "v"]


@pytest.mark.parametrize("length", [LENGTH, 5])
def test_both_readings_are_those_of_a_plain_loop(length: int) -> None:
    """Both readings omit the text's first token, and the second directly follows the first."""
    decoder = opinionated("q", "k")
    found = ask(decoder, "repeat", train={"seq_len": length})

    half = length // 2
    texts = [ids[:half] for ids in validation_ids(HELD_OUT, 4, half)]
    twice = np.array([by_hand(decoder, np.tile(text, 2)) for text in texts])
    assert found["reading"] == [1, 2]
    expected = [twice[:, : half - 1].mean(), twice[:, half:].mean()]
    assert found["loss"] == pytest.approx(expected, abs=1e-5)


def test_the_floors_are_counted_one_by_one() -> None:
    """The first layer's share, with a rotated denominator, is counted from explicit sums."""
    decoder = opinionated("q", "k", attn=LinearConfig(form="both")).eval()
    layer = attentions(decoder)[0]
    assert isinstance(layer, LinearAttention)
    found = ask(decoder, "floors")["share"][0]

    ids_NT = torch.from_numpy(validation_ids(HELD_OUT, 4, LENGTH))[:, :-1]
    norm = decoder.get_submodule("model.layers.0.input_layernorm")
    x_BTD = norm(decoder.model.embed_tokens(ids_NT))
    at = decoder.model.rotary_emb(torch.arange(LENGTH))[0]
    q, k = (
        layer.rotate(site, layer._feature(split_heads(project(x_BTD), layer.head_dim)), at)
        for site, project in (("q", layer.q_proj), ("k", layer.k_proj))
    )
    k = k.repeat_interleave(q.shape[2] // k.shape[2], dim=2)
    similarity_BHTT = torch.einsum("bihk,bjhk->bhij", q, k).tril()
    expected = (similarity_BHTT.sum(dim=-1) < layer.attn.eps).double().mean()
    assert 0 < found < 1
    assert found == pytest.approx(float(expected), abs=1e-6)
