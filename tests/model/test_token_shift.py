"""Tests of token shift, in which keys and values mix in the previous token."""

import pytest
import torch
from support.models import (
    SIZES,
    make_decoder,
    make_pe,
    make_sizes,
)

from rope_exp import attention as softmax
from rope_exp.decoder import llama_weights, weights, weights_sha256
from rope_exp.errors import LawError
from rope_exp.laws.certificate import certificate

SHIFTED = make_sizes(token_shift=True)


def test_a_cache_that_forgets_the_newest_input_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    previous = softmax.previous
    monkeypatch.setattr(softmax, "previous", lambda x_BTD, at, cache: previous(x_BTD, at))
    with pytest.raises(LawError, match="computed as cached is not what training computes"):
        certificate(SHIFTED, make_pe("q", "k"))


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
