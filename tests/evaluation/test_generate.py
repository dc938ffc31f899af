"""Tests of text generation."""

import pytest
import torch
from support.models import opinionated
from support.refused import refused

from rope_exp.commands.generate import generate, main
from rope_exp.decoder import Decoder
from rope_exp.prepare import byte_tokenizer

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
    text = generate(decoder, byte_tokenizer(), "where", END, tokens=6, temperature=0.0)
    assert text == byte_tokenizer().decode(expected)


def test_a_seed_is_a_text(decoder: Decoder) -> None:
    one, same, other = (
        generate(decoder, byte_tokenizer(), "x", END, temperature=2.0, seed=seed)
        for seed in (1, 1, 2)
    )
    assert one == same
    assert one != other


def test_the_lowest_temperature_takes_the_likeliest(decoder: Decoder) -> None:
    texts = [generate(decoder, byte_tokenizer(), "x", END, temperature=t) for t in (0.0, 1e-40)]
    assert texts[0] == texts[1]


@pytest.mark.parametrize("option", ["--tokens=0", "--temperature=-1", "--top-p=0", "--seed=-1"])
def test_an_option_without_a_meaning_is_refused(option: str) -> None:
    with refused(option.partition("=")[0]):
        main(["no_folder", "text", option])


def test_a_model_that_looks_both_ways_generates_nothing() -> None:
    with refused("train.objective: looks both ways", "no next token to generate"):
        generate(opinionated("q", causal=False), byte_tokenizer(), "a", 0)
