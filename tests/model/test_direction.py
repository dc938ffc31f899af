"""Tests that rotating the other way gives the same training from mirrored initial weights."""

from collections.abc import Callable

import pytest
import torch
from support.models import VOCAB, make_decoder, make_sizes
from torch import Tensor, nn

from rope_exp.decoder import Decoder
from rope_exp.probes._windows import attentions
from rope_exp.rope import rotate

Rotation = Callable[..., Tensor]

NUM_STEPS = 8


def other_way(x_BTHK: Tensor, cos: Tensor, sin: Tensor, *, inverse: bool = False) -> Tensor:
    """Return x rotated the other way, at every site."""
    return rotate(x_BTHK, cos, sin, inverse=not inverse)


def o_forward(x_BTHK: Tensor, cos: Tensor, sin: Tensor, *, inverse: bool = False) -> Tensor:
    """Return x rotated forward at O too, instead of back."""
    return rotate(x_BTHK, cos, sin)


@torch.no_grad()
def mirror(decoder: Decoder) -> None:
    """Replace W by S W for q, k, v and by W S for o, with S = diag(1, -1) on each rotating pair."""
    head_dim = decoder.architecture.model.features_per_head
    num_features = decoder.architecture.pe.num_features(head_dim)
    sign_K = torch.ones(head_dim, dtype=torch.float64)
    sign_K[num_features // 2 : num_features] = -1

    for attention in attentions(decoder):
        for projection in (attention.q_proj, attention.k_proj, attention.v_proj):
            rows = projection.weight.shape[0]
            projection.weight *= sign_K.repeat(rows // head_dim)[:, None]
        columns = attention.o_proj.weight.shape[1]
        attention.o_proj.weight *= sign_K.repeat(columns // head_dim)[None, :]


def losses(
    sites: str, rotation: Rotation, monkeypatch: pytest.MonkeyPatch, *, mirrored: bool
) -> Tensor:
    """Train on random tokens, with clipping as in a run, and return each step's float64 loss."""
    # All query heads share one key/value head, and half of each head's features rotate.
    sizes = make_sizes(num_key_value_heads=1)
    decoder = make_decoder(*sites, sizes=sizes, fraction=0.5).double()
    if mirrored:
        mirror(decoder)

    monkeypatch.setattr("rope_exp.attention.rotate", rotation)
    optimizer = torch.optim.AdamW(decoder.parameters(), lr=1e-2, weight_decay=0.1)
    generator = torch.Generator().manual_seed(1)
    of_steps = []
    for _ in range(NUM_STEPS):
        ids_BT = torch.randint(0, VOCAB, (4, 17), generator=generator)
        loss = decoder(ids_BT[:, :-1], ids_BT[:, 1:]) / 64
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(decoder.parameters(), 0.5)
        optimizer.step()
        of_steps.append(loss.detach())
    return torch.stack(of_steps)


@pytest.mark.parametrize("sites", ["o", "v", "q", "k", "qk", "vo", "qkvo"])
def test_the_direction_of_all_sites_is_absorbed(
    sites: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rotating the other way from mirrored weights gives the same losses, step by step.

    R_{-m} = S R_m S, and S can be absorbed into the weights without changing their distribution
    or their updates. Initial weights are symmetric in sign, so both directions have the same
    distribution of losses. If only O rotates, rotating it back is therefore no assumption.
    """
    usual = losses(sites, rotate, monkeypatch, mirrored=False)
    other = losses(sites, other_way, monkeypatch, mirrored=True)
    torch.testing.assert_close(other, usual, rtol=0, atol=1e-9)


def test_the_direction_of_o_against_v_matters(monkeypatch: pytest.MonkeyPatch) -> None:
    """S can be absorbed only once: if V also rotates, O must rotate the opposite way."""
    usual = losses("vo", rotate, monkeypatch, mirrored=False)
    for mirrored in (False, True):
        other = losses("vo", o_forward, monkeypatch, mirrored=mirrored)
        assert (other - usual).abs().max() > 1e-4
