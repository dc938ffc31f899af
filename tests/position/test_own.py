"""Tests of position encodings from a user's file: the docs' examples, and built-in schemes."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.configs import composed
from support.models import SIZES, make_pe, normal, opinionated, tokens
from support.own import example, with_text
from support.refused import refused
from torch import Tensor

from rope_exp.attention import Attention
from rope_exp.config import RunConfig
from rope_exp.costs import cached_sizes, with_matched
from rope_exp.custom_code import refuse_code_errors, with_source
from rope_exp.decoder import Decoder
from rope_exp.errors import ConfigError
from rope_exp.export.write import exported
from rope_exp.laws import certificate
from rope_exp.probes._windows import attentions
from rope_exp.rope import frequencies, rotate
from rope_exp.sections import SOFTMAX, PeConfig

HEAD = "import torch\nfrom torch import nn\nfrom rope_exp import Position\n\n"

# Built-in schemes, as a user would write them.
OURS = {
    "rotation": """
class Own(Position):
    def turn(self, site, x_BTHK, position_T):
        if site in "qk":
            return x_BTHK
        half = x_BTHK.shape[-1] // 2
        theta_F = 100.0 ** -(torch.arange(half, dtype=torch.float64) / half)
        angle = (position_T[..., None] * theta_F)[..., None, :] * (-1 if site == "o" else 1)
        a, b = x_BTHK[..., :half], x_BTHK[..., half:]
        return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], -1)
""",
    "alibi": """
class Own(Position):
    def scores(self, kept, num_queries):
        heads = self.sizes.num_attention_heads
        slope_H = 2.0 ** (-8.0 / heads * torch.arange(1, heads + 1))
        key_BE = kept["position_BE"]
        distance_BTE = (key_BE[:, -num_queries:, None] - key_BE[:, None]).abs()
        return -slope_H[:, None, None] * distance_BTE[:, None]
""",
    "sinusoidal": """
class Own(Position):
    relative = False

    def embed(self, x_BTD, position_T):
        half = x_BTD.shape[-1] // 2
        theta_F = 10000.0 ** -(torch.arange(half, dtype=torch.float64) / half)
        angle = position_T[..., None] * theta_F
        return x_BTD + 0.02 * 2**0.5 * torch.cat([angle.sin(), angle.cos()], dim=-1)
""",
}
BUILT_IN = {
    "rotation": make_pe("v", "o"),
    "alibi": make_pe(bias="alibi"),
    "sinusoidal": make_pe(input="sinusoidal"),
}


def own(source: str, *sites: str, name: str = "Own") -> PeConfig:
    return with_text(make_pe(*sites), f"mine.{name}", HEAD + source)


def decoder_of(pe: PeConfig) -> Decoder:
    return opinionated(pe=pe, scale=8).double()


@pytest.mark.parametrize("scheme", OURS)
@torch.no_grad()
def test_a_built_in_scheme_from_a_file_is_the_same(scheme: str) -> None:
    ids_BT = tokens(2, 12)
    there = decoder_of(own(OURS[scheme]))(ids_BT)
    here = decoder_of(BUILT_IN[scheme])(ids_BT)
    torch.testing.assert_close(there, here, rtol=0, atol=1e-6)
    assert not torch.allclose(here, decoder_of(make_pe())(ids_BT), atol=1e-3)


def projections(attention: Attention, x_BTD: Tensor) -> list[Tensor]:
    """Return q, k and v of each query head."""
    qkv = [
        F.linear(x_BTD, layer.weight).unflatten(-1, (-1, attention.head_dim))
        for layer in (attention.q_proj, attention.k_proj, attention.v_proj)
    ]
    return [x.repeat_interleave(attention.num_heads // x.shape[2], dim=2) for x in qkv]


def weighed(score_BHTT: Tensor, v_BTHK: Tensor) -> Tensor:
    later_TT = torch.ones(score_BHTT.shape[-2:], dtype=torch.bool).triu(1)
    weight_BHTT = score_BHTT.masked_fill(later_TT, -math.inf).softmax(-1)
    return torch.einsum("bhij,bjhk->bihk", weight_BHTT, v_BTHK)


@pytest.mark.parametrize("sites", [(), ("v", "o")], ids=["alone", "with VO"])
@torch.no_grad()
def test_forgetting_is_its_definition(sites: tuple[str, ...]) -> None:
    """To each score are added the logarithms of later gates, up to the query's."""
    decoder = decoder_of(example("Forget", *sites))
    attention = attentions(decoder)[0]
    forget: Any = attention.own
    x_BTD = normal(2, 7, 32)
    position_T = torch.arange(7)
    at = decoder.model.rotary_emb.double()(position_T)[0]._replace(position_T=position_T)

    q, k, v = projections(attention, x_BTD)
    gate_BTH = torch.sigmoid(x_BTD @ forget.weight.T + forget.bias)
    gates_BHT = gate_BTH.log().cumsum(1).transpose(1, 2)
    score_BHTT = torch.einsum("bihk,bjhk->bhij", q, k) / math.sqrt(attention.head_dim)
    score_BHTT += gates_BHT[..., None] - gates_BHT[..., None, :]
    if sites:
        expected = rotate(weighed(score_BHTT, rotate(v, *at.qk)), *at.qk, inverse=True)
    else:
        expected = weighed(score_BHTT, v)
    torch.testing.assert_close(attention.heads(x_BTD, at, None), expected, rtol=0, atol=1e-6)


@torch.no_grad()
def test_polar_scores_are_their_definition() -> None:
    """Scores are sums of softplus(q) softplus(k) cos((i - j) theta - delta)."""
    decoder = decoder_of(example("Polar"))
    attention = attentions(decoder)[0]
    phase = attention.get_parameter("own.phase")
    phase.copy_(-3 * torch.rand(phase.shape, generator=torch.Generator().manual_seed(0)))
    x_BTD = normal(1, 6, 32)
    position_T = torch.arange(6)
    at = decoder.model.rotary_emb(position_T)[0]._replace(position_T=position_T)

    q, k, v = projections(attention, x_BTD)
    delta_HK = phase.view(2, 8).repeat_interleave(2, dim=0)
    theta_K = 10000.0 ** -(torch.arange(8, dtype=torch.float64) / 8)
    offset_TT = position_T[:, None] - position_T
    wave_HTTK = (offset_TT[..., None] * theta_K - delta_HK[:, None, None]).cos()
    sizes = (F.softplus(q), F.softplus(k))
    score_BHTT = torch.einsum("bihk,bjhk,hijk->bhij", *sizes, wave_HTTK) / math.sqrt(8)
    ours = attention.heads(x_BTD, at, None)
    torch.testing.assert_close(ours, weighed(score_BHTT, v), rtol=0, atol=1e-9)


def test_partial_frequencies_are_the_highest_of_all() -> None:
    """p-RoPE leaves out the lowest quarter, by base^p on a share p = 3/4 of the features."""
    pe = composed("pe=p_rope").pe
    kept = frequencies(pe.num_features(64), pe.base, torch.float64)
    torch.testing.assert_close(kept, frequencies(64, 10000.0, torch.float64)[:24])


def turning(returned: str) -> str:
    """Return a class whose `turn` returns an expression of `site` and `x`."""
    head = "class Own(Position):\n    def turn(self, site, x, position_T):\n        return "
    return head + returned


def constants(line: str) -> str:
    """Return a class that makes `a` by a line of its `__init__`, and adds it up at the input."""
    return (
        "class Own(Position):\n    relative = None\n\n    def __init__(self, sizes):\n"
        f"        super().__init__(sizes)\n        {line}\n\n"
        "    def embed(self, x_BTD, position_T):\n        return self.a.sum() * x_BTD"
    )


@pytest.mark.parametrize(
    "line",
    [
        "self.a = nn.Parameter(torch.ones(1, 4, 8))",
        "self.a = nn.Parameter(torch.randn(4, 8))",
        "self.a = nn.Parameter(torch.zeros(4, 8))",
        "self.register_buffer('a', torch.ones(4), persistent=False)",
    ],
)
def test_a_class_may_keep_what_no_seed_draws(line: str) -> None:
    """A third axis keeps values; a random matrix, or one of zeros, is drawn by the seed."""
    certificate(SIZES, own(constants(line)))


LIMITED = """
class Own(Position):
    relative = None

    def __init__(self, sizes):
        super().__init__(sizes)
        self.limit = sizes.num_positions
        self.scale = nn.Parameter(torch.ones(sizes.num_positions))

    def turn(self, site, x_BTHK, position_T):
        return x_BTHK * self.scale[position_T][..., None, None] if site == "v" else x_BTHK
"""


def test_a_class_of_layers_may_have_a_limit() -> None:
    """The model and its export then refuse other positions, and probes ask for none."""
    decoder = opinionated(pe=own(LIMITED), num_positions=12)
    assert decoder.model.num_positions == 12
    certificate(SIZES, own(LIMITED))
    decoder(tokens(1, 12))
    with refused("asked for were 0 to 12", by=ConfigError):
        decoder(tokens(1, 13))
    model = exported(decoder)
    model(tokens(1, 12))
    with pytest.raises(ValueError, match="the model has 12 positions"):
        model(tokens(1, 13))


FAULTY = "class Own(Position):\n    def scores(self, kept, num_queries):\n        return 1 / 0"


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (FAULTY, "7"),
        ("class Own:\n    pass", "derived from rope_exp.Position"),
        ("raise ValueError('no')\n\nclass Own(Position):\n    pass", "line 5: ValueError: no"),
        (OURS["sinusoidal"].replace("relative = False", ""), "must be invariant"),
        (OURS["alibi"] + "\n    relative = False", "must be changed"),
        ("import sys\n\nclass Own(Position):\n    relative = sys.exit(0)", "line 8: SystemExit"),
        (OURS["alibi"].replace("heads = self", "heads = 2 or self"), "scores returned the shape"),
        (
            "class Own(Position):\n    def __init__(self, sizes):\n"
            "        super().__init__(sizes)\n        self.a = nn.Parameter(torch.ones(3))\n\n"
            "    def embed(self, x_BTD, position_T):\n        return x_BTD",
            "has no part in the logits",
        ),
        (
            "class Own(Position):\n    def __init__(self, sizes):\n"
            "        super().__init__(sizes)\n        self.a = nn.Parameter(torch.rand(1))\n\n"
            "    def embed(self, x_BTD, position_T):\n        return self.a * x_BTD",
            "is random",
        ),
        (
            "class Own(Position):\n    def turn(self, site, x_BTHK, position_T):\n"
            "        return x_BTHK.cumsum(1)",
            "with a cache, or run twice",
        ),
        (
            "class Own(Position):\n    def turns(self, site, x):\n        return 2 * x",
            "must define",
        ),
        (turning("None"), "turn('q') returned NoneType, not a tensor"),
        (turning("x.repeat(1, 1, 1, 2) if site == 'v' else x"), "turn('v') returned the shape (2,"),
        (turning("x.repeat(1, 1, 2, 1) if site == 'k' else x"), "turn('k') returned the shape"),
        (turning("x[0]"), "turn('q') returned the shape"),
        (constants("self.a = nn.Parameter(torch.ones(4, 8))"), "a is a matrix"),
        (constants("self.register_buffer('a', torch.ones(4))"), "a is a buffer"),
    ],
)
def test_a_mistake_of_a_class_is_one_sentence(
    source: str, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with refused("pe.code=mine.Own", reason, by=ConfigError):
        certificate(SIZES, own(source))
    if source == FAULTY:
        assert "return 1 / 0" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (None, "there is no mine.py"),
        ("class Own(", "line 1"),
        ("x = 1", "has no class Own"),
        ("import pandas\nclass Own: pass", "not pandas"),
        ("from .other import x\nclass Own: pass", "may import"),
    ],
)
def test_a_mistake_of_a_file_is_one_sentence(text: str | None, reason: str, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / "mine.py").write_text(text)
    config = RunConfig(pe=PeConfig("mine", rotate=(), code="mine.Own"))
    with refused("pe.code=mine.Own", reason, by=ConfigError):
        with_source(config, [tmp_path])


def test_a_changed_text_is_refused() -> None:
    """A text without a hash, or without pe.code, is refused too."""
    pe = own(OURS["alibi"])
    changed = str(pe.source) + "\n"
    for digest in (pe.code_sha256, None):
        with refused("pe.source", "was changed", by=ConfigError):
            RunConfig(pe=replace(pe, source=changed, code_sha256=digest))
    with refused("pe.source", "needs pe.code", by=ConfigError):
        RunConfig(pe=PeConfig(source="hello"))
    other = with_text(pe, "mine.Own", changed)
    assert RunConfig(pe=pe).config_sha256 != RunConfig(pe=other).config_sha256


def test_a_config_that_is_read_runs_no_code() -> None:
    """Counting parameters would run the code, and a record may hold anybody's text."""
    pe = own("raise SystemExit('executed')\n\nclass Own(Position):\n    pass")
    values = RunConfig(pe=pe).to_dict()
    values["model"]["match_params"] = 30000
    config = RunConfig.from_dict(values)
    with refused("model.match_params=30000", "cannot be met with pe.code", by=ConfigError):
        with_matched(config)
    assert cached_sizes(SOFTMAX, SIZES, pe) == (None, None)


def test_a_class_without_memory_is_no_mistake() -> None:
    """It ends with exit code 1 and torch's own message, as for any variant."""
    for error in (MemoryError(), RuntimeError("std::bad_alloc")):
        with pytest.raises(type(error)), refuse_code_errors("mine.Own"):
            raise error
    with pytest.raises(ConfigError), refuse_code_errors("mine.Own"):
        raise AttributeError("no attribute 'memory'")
