"""Tests of Muon against torch's own, applied head by head."""

from typing import Any

import pytest
import torch
from support.kinds import KINDS
from support.models import SIZES, VOCAB, make_decoder, make_pe
from torch import Tensor, nn

from rope_exp.config import Architecture
from rope_exp.decoder import Decoder
from rope_exp.optim.muon import Config as MuonConfig
from rope_exp.optim.muon import by_head, whole
from rope_exp.optimizer import build_optimizer
from rope_exp.sections import AttentionConfig

OPTIM = MuonConfig(lr=0.02, momentum=0.9, weight_decay=0.1)
NUM_STEPS = 3


def gradient_of(name: str, shape: torch.Size, step: int) -> Tensor:
    generator = torch.Generator().manual_seed(1000 * step + sum(map(ord, name)))
    return torch.randn(shape, generator=generator)


def trained(decoder: Decoder) -> Decoder:
    optimizer: Any = build_optimizer(decoder, OPTIM)
    for step in range(NUM_STEPS):
        for name, parameter in decoder.named_parameters():
            parameter.grad = gradient_of(name, parameter.shape, step)
        optimizer.found_inf = torch.tensor(0.0)
        optimizer.step()
    return decoder


def by_torch(matrix: Tensor, gradients: list[Tensor]) -> Tensor:
    """Return a matrix after torch's Muon has updated it with each of the gradients."""
    parameter = nn.Parameter(matrix.detach().clone())
    optimizer = torch.optim.Muon(
        [parameter], lr=0.02, momentum=0.9, weight_decay=0.1, adjust_lr_fn="match_rms_adamw"
    )
    for gradient in gradients:
        parameter.grad = gradient
        optimizer.step()
    return parameter.detach()


# The dimension that heads divide, and their number: 4 query heads, and 2 key/value heads if any.
USUAL = {"q_proj": (0, 4), "k_proj": (0, 2), "v_proj": (0, 2), "o_proj": (1, 4)}
BY_HEAD = {
    "decay": {"v_proj": (0, 2), "o_proj": (1, 4)},
    "latent": {"q_proj": (0, 4), "q_b_proj": (0, 4), "kv_b_proj": (0, 4), "o_proj": (1, 4)},
}


@pytest.mark.parametrize("attn", KINDS, ids=str)
def test_a_matrix_of_a_layer_moves_as_torchs_muon_moves_it(attn: AttentionConfig) -> None:
    """The reference updates a matrix whole, or each head's part of it separately."""
    architecture = Architecture(SIZES, make_pe(), VOCAB, attn)
    before, after = Decoder(architecture), Decoder(architecture)
    before.initialise(0)
    after.initialise(0)
    trained(after)

    splits = BY_HEAD.get(attn.kind, USUAL)
    moved = dict(after.named_parameters())
    for name, matrix in before.named_parameters():
        if ".layers." not in name or matrix.ndim != 2:
            continue
        split = splits.get(name.partition(".self_attn.")[2].removesuffix(".weight"))
        gradients = [gradient_of(name, matrix.shape, step) for step in range(NUM_STEPS)]
        parts = zip(*(by_head(x, split) for x in (matrix, *gradients)), strict=True)
        expected = torch.stack([by_torch(head, list(of_head)) for head, *of_head in parts])
        torch.testing.assert_close(moved[name].detach(), whole(expected, split))


def test_what_is_no_matrix_of_a_layer_moves_by_adamw() -> None:
    moved = dict(trained(make_decoder("q", "k")).named_parameters())
    named = {
        name: parameter
        for name, parameter in make_decoder("q", "k").named_parameters()
        if ".layers." not in name or parameter.ndim != 2
    }
    groups = [
        {"params": [p for p in named.values() if p.ndim == 2], "weight_decay": 0.1},
        {"params": [p for p in named.values() if p.ndim < 2], "weight_decay": 0.0},
    ]
    adamw = torch.optim.AdamW(groups, lr=0.02, betas=OPTIM.betas, eps=OPTIM.eps)
    for step in range(NUM_STEPS):
        for name, parameter in named.items():
            parameter.grad = gradient_of(name, parameter.shape, step)
        adamw.step()

    assert len(named) > 5
    for name, parameter in named.items():
        torch.testing.assert_close(moved[name].detach(), parameter.detach())
