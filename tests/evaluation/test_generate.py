"""Tests of text generation."""

import pytest
import torch
from support.models import opinionated
from support.refused import refused

from rope_exp.commands.generate import distribution, generate
from rope_exp.decoder import Decoder
from rope_exp.tokenizer import byte_tokenizer

END = 256


@pytest.fixture(scope="module")
def decoder() -> Decoder:
    """Return a decoder with random weights, large enough that its distributions are not flat."""
    return opinionated(*"qkvo", scale=10, vocab_size=END + 1).eval()


@torch.no_grad()
def test_greedy_text_is_the_argmax_of_the_whole_forward_pass(decoder: Decoder) -> None:
    ids = [END, *b"where"]
    expected = []
    for _ in range(6):
        token = int(decoder(torch.tensor([ids]))[0, -1].argmax())
        if token == END:
            break
        ids.append(token)
        expected.append(token)
    text = generate(decoder, byte_tokenizer(), "where", END, num_tokens=6, temperature=0.0)
    assert text == byte_tokenizer().decode(expected)


def test_a_seed_is_a_text(decoder: Decoder) -> None:
    one, same, other = (
        generate(decoder, byte_tokenizer(), "x", END, temperature=2.0, seed=seed)
        for seed in (1, 1, 2)
    )
    assert one == same != other


def test_a_model_that_looks_both_ways_generates_nothing() -> None:
    with refused("train.objective: looks both ways", "no next token to generate"):
        generate(opinionated("q", causal=False), byte_tokenizer(), "a", 0)


def test_the_nucleus_is_the_fewest_likeliest() -> None:
    logits_BV = torch.tensor([[0.5, 0.3, 0.15, 0.05]]).log()
    for top_p, expected in (
        (0.4, [1, 0, 0, 0]),
        (0.6, [0.625, 0.375, 0, 0]),
        (0.95, [10 / 19, 6 / 19, 3 / 19, 0]),
        (1.0, [0.5, 0.3, 0.15, 0.05]),
    ):
        found = distribution(logits_BV, 1.0, top_p)
        torch.testing.assert_close(found.float(), torch.tensor([expected], dtype=torch.float32))


def test_temperature_sharpens() -> None:
    logits_BV = torch.tensor([[1.0, 0.0]])
    found = distribution(logits_BV, 0.5, 1.0)
    torch.testing.assert_close(found.float(), (logits_BV * 2).softmax(-1))
    for cold in (0.0, 1e-50, 1e-320):
        assert distribution(logits_BV, cold, 0.95).tolist() == [[1.0, 0.0]]
