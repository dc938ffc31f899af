"""Tests of each kind of attention against a float64 loop written from its definition."""

import cmath
import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.kinds import CASES, CASES_WITH_KEYS, all_sites, make_layer, subsets_of
from support.models import BASE, SIZES, make_positions, make_sizes, normal, rotation_matrix
from torch import Tensor

from rope_exp.attention import Attention
from rope_exp.attn.decay import MAX_LEARNED_HEADS
from rope_exp.attn.decay import Config as DecayConfig
from rope_exp.attn.latent import Config as LatentConfig
from rope_exp.attn.linear import Config as LinearConfig
from rope_exp.attn.retention import Config as RetentionConfig
from rope_exp.attn.shared import Config as SharedConfig
from rope_exp.sections import AttentionConfig, SoftmaxConfig

LENGTH = 7
BASE_VO = 7.0
HEADS = SIZES.num_attention_heads
DIM = SIZES.features_per_head


class Loop:
    """One layer, evaluated by dense rotation matrices, one position and head at a time."""

    def __init__(
        self,
        layer: Attention,
        x_TD: Tensor,
        base_vo: float | None = None,
        documents: tuple[int, ...] = (0,) * LENGTH,
    ) -> None:
        self.layer = layer
        self.base_vo = base_vo or BASE
        self.x_TD = x_TD
        self.documents = documents
        self.weights = {name: p.detach() for name, p in layer.named_parameters()}

    def met(self, i: int) -> list[int]:
        """Return the keys that query i attends to."""
        reached = range(max(i - (self.layer.window or LENGTH) + 1, 0), i + 1)
        return [j for j in reached if self.documents[j] == self.documents[i]]

    def project(self, name: str, features: int) -> Tensor:
        """Return [T, heads, features], not rotated."""
        return (self.x_TD @ self.weights[f"{name}.weight"].T).view(LENGTH, -1, features)

    def turn(self, site: str, position: int, x_K: Tensor) -> Tensor:
        """Return R_m x, or R_m' x for o, applied to the last `rotary_dim` features."""
        if site not in self.layer.sites:
            return x_K
        num_left = len(x_K) - self.layer.rotary_dim
        matrix = rotation_matrix(
            position, self.layer.rotary_dim, self.base_vo if site in "vo" else BASE
        )
        matrix = matrix.T if site == "o" else matrix
        return torch.cat([x_K[:num_left], matrix @ x_K[num_left:]])

    def sum_values(self, weight: Callable[[int, int, int], Any]) -> Tensor:
        """Return sum over j <= i of weight(i, j, h) R_j v_j, [T, heads, features]."""
        v = self.project("v_proj", DIM)
        o = torch.zeros(LENGTH, HEADS, DIM, dtype=torch.float64)
        for i, h in itertools.product(range(LENGTH), range(HEADS)):
            for j in range(i + 1):
                o[i, h] += weight(i, j, h) * self.turn("v", j, v[j, h * v.shape[1] // HEADS])
        return o

    def turn_back(self, o: Tensor) -> Tensor:
        rows = [[self.turn("o", i, o_K) for o_K in o_HK] for i, o_HK in enumerate(o)]
        return torch.stack([torch.stack(row) for row in rows])

    def end(self, o_THV: Tensor) -> Tensor:
        return o_THV.flatten(1) @ self.weights["o_proj.weight"].T


def softmax_of(loop: Loop, q: Tensor, keys: Any, values: Any) -> Tensor:
    """Return softmax attention; keys(h, j) and values(h, j) are already rotated, and q is not."""
    o = torch.zeros(LENGTH, HEADS, len(values(0, 0)), dtype=torch.float64)
    for i, h in itertools.product(range(LENGTH), range(HEADS)):
        q_i = loop.turn("q", i, q[i, h])
        k_j = torch.stack([keys(h, j) for j in loop.met(i)])
        v_j = torch.stack([values(h, j) for j in loop.met(i)])
        scores = k_j @ q_i / math.sqrt(len(q_i))
        if "sink_H" in loop.weights:
            scores = torch.cat([scores, loop.weights["sink_H"][h : h + 1]])
        o[i, h] = torch.softmax(scores, dim=0)[: len(v_j)] @ v_j
    return loop.end(loop.turn_back(o))


def softmax(loop: Loop, attn: SoftmaxConfig) -> Tensor:
    """Return grouped softmax attention; keys and values may mix in the token before."""
    q = loop.project("q_proj", DIM)
    if "token_shift" in loop.weights:
        mixed = []
        for t, x_D in enumerate(loop.x_TD):
            begins = t == 0 or loop.documents[t - 1] != loop.documents[t]
            before_D = x_D if begins else loop.x_TD[t - 1]
            mu_D = loop.weights["token_shift"]
            mixed.append((1 - mu_D) * x_D + mu_D * before_D)
        loop.x_TD = torch.stack(mixed)
    k, v = loop.project("k_proj", DIM), loop.project("v_proj", DIM)
    if "q_norm.weight" in loop.weights:
        q = rms(q, SIZES.rms_norm_eps) * loop.weights["q_norm.weight"]
        k = rms(k, SIZES.rms_norm_eps) * loop.weights["k_norm.weight"]
    per_group = HEADS // k.shape[1]

    def turned(site: str, x: Tensor) -> Any:
        return lambda h, j: loop.turn(site, j, x[j, h // per_group])

    return softmax_of(loop, q, turned("k", k), turned("v", v))


def latent(loop: Loop, attn: LatentConfig) -> Tensor:
    x_TD = loop.x_TD
    if attn.q_rank is None:
        q = loop.project("q_proj", attn.widths(SIZES)[0])
    else:
        c_q = rms(x_TD @ loop.weights["q_a_proj.weight"].T) * loop.weights["q_a_layernorm.weight"]
        q = (c_q @ loop.weights["q_b_proj.weight"].T).view(LENGTH, HEADS, -1)
    both = x_TD @ loop.weights["kv_a_proj_with_mqa.weight"].T
    c = rms(both[:, : attn.kv_rank]) * loop.weights["kv_a_layernorm.weight"]
    k_r = both[:, attn.kv_rank :]
    expanded = (c @ loop.weights["kv_b_proj.weight"].T).view(LENGTH, HEADS, -1)

    def keys(h: int, j: int) -> Tensor:
        return torch.cat([expanded[j, h, : attn.nope_dim], loop.turn("k", j, k_r[j])])

    def values(h: int, j: int) -> Tensor:
        v_c = expanded[j, h, attn.nope_dim :]
        return torch.cat([v_c, loop.turn("v", j, k_r[j])]) if attn.value_rope else v_c

    return softmax_of(loop, q, keys, values)


def rms(x: Tensor, eps: float = 1e-6) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt()


def shared(loop: Loop, attn: SharedConfig) -> Tensor:
    q = loop.project("q_proj", attn.widths(SIZES)[0])
    c = loop.project("k_proj", attn.widths(SIZES)[0])
    own = loop.project("v_proj", attn.rope_dim) if attn.form == "s1" else None
    per_group = HEADS // attn.groups
    if attn.norm:
        q = rms(q, SIZES.rms_norm_eps)
        c = rms(c, SIZES.rms_norm_eps) * loop.weights["k_norm.weight"]

    def values(h: int, j: int) -> Tensor:
        c_j = c[j, h // per_group]
        if attn.form == "s3":
            return c_j[: attn.nope_dim]
        if own is not None:
            c_j = torch.cat([c_j[: attn.nope_dim], own[j, h // per_group]])
        return loop.turn("v", j, c_j)

    return softmax_of(loop, q, lambda h, j: loop.turn("k", j, c[j, h // per_group]), values)


def linear(loop: Loop, attn: LinearConfig) -> Tensor:
    q, k = (loop.project(f"{name}_proj", DIM) for name in "qk")
    per_group = HEADS // k.shape[1]

    def phi(x: Tensor) -> Tensor:
        return x if attn.form == "one_plus_cos" else torch.where(x > 0, x + 1, x.exp())

    def similarity(i: int, j: int, h: int, *, turned: bool = True) -> float:
        q_i, k_j = phi(q[i, h]), phi(k[j, h // per_group])
        if turned:
            q_i, k_j = loop.turn("q", i, q_i), loop.turn("k", j, k_j)
        if attn.form == "one_plus_cos":
            return 1 + float(q_i @ k_j / (q_i.norm() * k_j.norm()))
        return float(q_i @ k_j)

    o = loop.sum_values(similarity)
    turned = attn.form != "numerator"
    for i, h in itertools.product(range(LENGTH), range(HEADS)):
        below = sum(similarity(i, j, h, turned=turned) for j in range(i + 1))
        o[i, h] /= max(below, attn.eps)
    return loop.end(loop.turn_back(o))


def retention(loop: Loop, attn: RetentionConfig) -> Tensor:
    q, k = (loop.project(f"{name}_proj", DIM) for name in "qk")
    per_group = HEADS // k.shape[1]

    def weight(i: int, j: int, h: int) -> Tensor:
        score = loop.turn("q", i, q[i, h]) @ loop.turn("k", j, k[j, h // per_group])
        return (1 - 2.0 ** (-5 - h)) ** (i - j) * score / math.sqrt(DIM)

    return loop.end(rms(loop.turn_back(loop.sum_values(weight)), SIZES.rms_norm_eps))


def decay(loop: Loop, attn: DecayConfig) -> Tensor:
    """Return decay attention; if V and O rotate, by LRU's complex recurrence h <- lambda h + v."""

    def gamma(h: int) -> float:
        return attn.gamma if isinstance(attn.gamma, float) else 1 - 2.0 ** (-5 - h)

    if loop.layer.sites == {"v", "o"}:
        v = loop.project("v_proj", DIM)
        half = DIM // 2
        o = torch.zeros(LENGTH, HEADS, DIM, dtype=torch.float64)
        for h, f in itertools.product(range(HEADS), range(half)):
            step = gamma(h) * cmath.exp(-1j * loop.base_vo ** (-2 * f / DIM))
            state = 0j
            for i, v_K in enumerate(v[:, h * v.shape[1] // HEADS]):
                state = step * state + complex(v_K[f], v_K[f + half])
                o[i, h, f], o[i, h, f + half] = state.real, state.imag
    else:
        o = loop.turn_back(loop.sum_values(lambda i, j, h: gamma(h) ** (i - j)))
    if attn.normalise == "sqrt":
        for h in range(HEADS):
            o[:, h] *= math.sqrt(1 - gamma(h) ** 2)
    return loop.end(o)


LOOPS: dict[str, Any] = {
    "softmax": softmax,
    "latent": latent,
    "shared": shared,
    "linear": linear,
    "retention": retention,
    "decay": decay,
}


@pytest.mark.parametrize(("attn", "sizes"), CASES)
@pytest.mark.parametrize("base_vo", [None, BASE_VO])
@torch.no_grad()
def test_every_subset_equals_the_loop(
    attn: AttentionConfig, sizes: dict[str, Any], base_vo: float | None
) -> None:
    x_TD = normal(LENGTH, SIZES.hidden_size, seed=1)
    for sites in subsets_of(attn):
        layer = make_layer(attn, sites, sizes=make_sizes(**sizes)).double()
        if layer.sink_H is not None:
            layer.sink_H.copy_(torch.tensor([-1.0, 0.0, 1.0, 3.0]))
        ours = layer(x_TD[None], make_positions(LENGTH, layer.rotary_dim, base_vo=base_vo))[0]
        by_loop = LOOPS[attn.kind](Loop(layer, x_TD, base_vo), attn)
        # A learned decay is float32. Errors are relative, as floored denominators give large o.
        tolerance = 1e-6 if getattr(attn, "gamma", None) == "learned" else 1e-12
        assert float((ours - by_loop).abs().max() / by_loop.abs().max()) < tolerance, sites


@pytest.mark.parametrize(("attn", "sizes"), CASES_WITH_KEYS)
@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("documents", [(0,) * LENGTH, (3, 3, 8, 9, 3, 3, 3)], ids=["one", "many"])
@torch.no_grad()
def test_windows_and_documents_equal_the_loop(
    attn: AttentionConfig, sizes: dict[str, Any], window: int | None, documents: tuple[int, ...]
) -> None:
    """One of the documents is a single token."""
    x_TD = normal(LENGTH, SIZES.hidden_size, seed=4)
    layer = make_layer(attn, all_sites(attn), sizes=make_sizes(window=window, **sizes)).double()
    at = make_positions(LENGTH, layer.rotary_dim)
    ours = layer(x_TD[None], at._replace(document_BT=torch.tensor([documents])))[0]
    by_loop = LOOPS[attn.kind](Loop(layer, x_TD, documents=documents), attn)
    assert float((ours - by_loop).abs().max()) < 1e-10


@pytest.mark.parametrize("normalise", ["none", "sqrt"])
def test_every_head_that_may_learn_its_decay_begins_at_retnets(normalise: Any) -> None:
    """Even the last head begins inside the clamped range, so that it has a gradient."""
    sizes = make_sizes(num_attention_heads=MAX_LEARNED_HEADS, num_key_value_heads=1, head_dim=2)
    attn = DecayConfig(gamma="learned", normalise=normalise)
    layer: Any = make_layer(attn, (), sizes=sizes).double()
    begins_H = [math.log1p(-(2.0 ** (-5 - head))) for head in range(MAX_LEARNED_HEADS)]
    expected_H = torch.tensor(begins_H, dtype=torch.float64)
    torch.testing.assert_close(layer.log_gamma(), expected_H, rtol=1e-5, atol=0)

    o_BTD = layer(normal(1, LENGTH, sizes.hidden_size), make_positions(LENGTH, 2))
    (gradient_H,) = torch.autograd.grad(o_BTD.square().sum(), layer.nu)
    assert bool((gradient_H.isfinite() & (gradient_H != 0)).all())
