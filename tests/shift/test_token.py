"""Tests of token shift; its layer is among the cases of tests/attn."""

import pytest
import torch
from support.models import SIZES, make_decoder, make_pe, make_sizes

from rope_exp import attention as token
from rope_exp.decoder import llama_weights, weights, weights_sha256
from rope_exp.errors import LawError
from rope_exp.laws import certificate


def test_token_shift_draws_nothing_and_moves_no_other_weight() -> None:
    plain = make_decoder("q", "k", seed=3)
    shifted = make_decoder("q", "k", seed=3, sizes=make_sizes(token_shift=True))
    drawn = weights(shifted)
    added = sorted(drawn.keys() - weights(plain).keys())
    assert added == [f"model.layers.{layer}.self_attn.token_shift" for layer in (0, 1)]
    for name in added:
        assert torch.equal(drawn.pop(name), torch.full((SIZES.hidden_size,), 0.5))
    assert weights_sha256(drawn) == weights_sha256(weights(plain))
    assert weights_sha256(llama_weights(shifted)) == weights_sha256(llama_weights(plain))


def test_a_cache_that_forgets_the_newest_input_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    previous = token.previous
    monkeypatch.setattr(token, "previous", lambda x_BTD, at, cache: previous(x_BTD, at))
    with pytest.raises(LawError, match="computed as cached is not what training computes"):
        certificate(make_sizes(token_shift=True), make_pe("q", "k"))
