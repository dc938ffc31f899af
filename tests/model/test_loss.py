"""Tests of the chunked loss head against the cross-entropy of all logits at once."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from support.models import normal
from torch import Tensor

from rope_exp import decoder as loss
from rope_exp.decoder import chunk_gradients, summed_cross_entropy


def inputs(
    tokens: int, width: int, vocab: int, seed: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    x_ND = normal(tokens, width, seed=seed).to(dtype).requires_grad_()
    head_VD = normal(vocab, width, seed=seed + 1).to(dtype).requires_grad_()
    generator = torch.Generator().manual_seed(seed)
    return x_ND, head_VD, torch.randint(0, vocab, (tokens,), generator=generator)


def direct(x_ND: Tensor, head_VD: Tensor, target_N: Tensor) -> Tensor:
    return F.cross_entropy(x_ND @ head_VD.T, target_N, reduction="sum")


@settings(max_examples=40)
@given(
    st.integers(1, 70),
    st.integers(1, 9),
    st.integers(2, 50),
    st.sampled_from([1, 7, 512]),
    st.integers(0, 2**31),
)
def test_chunks_of_any_size_give_loss_and_gradients(
    tokens: int, width: int, vocab: int, size: int, seed: int
) -> None:
    x_ND, head_VD, target_N = inputs(tokens, width, vocab, seed, torch.float64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(loss.TOKENS_OF_A_CHUNK, "cpu", size)
        nats = summed_cross_entropy(x_ND, head_VD, target_N, chunk_gradients)
        with torch.no_grad():
            evaluated = summed_cross_entropy(x_ND, head_VD, target_N, chunk_gradients)
    right = direct(x_ND, head_VD, target_N)
    torch.testing.assert_close(nats, right)
    torch.testing.assert_close(evaluated, right)
    ours, theirs = (torch.autograd.grad(0.37 * x, (x_ND, head_VD)) for x in (nats, right))
    torch.testing.assert_close(ours, theirs)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # raised by torch's compiler
@pytest.mark.parametrize("compiled", [False, True])
def test_under_autocast_it_errs_no_more_than_the_whole(compiled: bool) -> None:
    x_ND, head_VD, target_N = inputs(500, 64, 300, 0, torch.float32)
    gradients = torch.compile(chunk_gradients, dynamic=False) if compiled else chunk_gradients
    exact = direct(x_ND.double(), head_VD.double(), target_N)
    with torch.autocast("cpu", torch.bfloat16):
        ours = summed_cross_entropy(x_ND, head_VD, target_N, gradients)
        theirs = direct(x_ND, head_VD, target_N)
    assert abs(ours.double() - exact) < 1.1 * abs(theirs.double() - exact) + 1e-6 * exact
    for leaf in (x_ND, head_VD):
        [own], [other], [right] = (
            torch.autograd.grad(nats, [leaf], retain_graph=True) for nats in (ours, theirs, exact)
        )
        assert own.dtype == torch.float32
        assert (own - right).norm() < 1.1 * (other - right).norm()


def test_no_chunk_holds_more_tokens_than_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(loss.TOKENS_OF_A_CHUNK, "cpu", 20)
    x_ND, head_VD, target_N = inputs(77, 4, 50, 0, torch.float32)
    seen = []

    def watched(x_CD: Tensor, head_VD: Tensor, target_C: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        seen.append(len(x_CD))
        return chunk_gradients(x_CD, head_VD, target_C)

    summed_cross_entropy(x_ND, head_VD, target_N, watched)
    assert sum(seen) == 77
    assert max(seen) <= 20
    assert max(seen) - min(seen) <= 1  # at most two shapes to compile
