"""Tests that a new kind of attention, added as docs/extending.md describes, works everywhere.

It is one module and one choice file. Its laws, weights, counts, cache, hash and plan must then
work without other changes.
"""

import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import pytest
import torch
from support.command import write
from support.models import SIZES, SUBSETS, VOCAB, make_pe, num_numbers, tokens
from support.refused import refused
from torch import Tensor

from rope_exp import identity
from rope_exp.attention import Positions, from_heads, split_heads, to_heads
from rope_exp.attn._recurrence import StateAttention, Sums, for_queries
from rope_exp.compose import run_config
from rope_exp.config import RunConfig
from rope_exp.decoder import Decoder
from rope_exp.identity import choices, section
from rope_exp.laws.certificate import certificate, expected_class
from rope_exp.sections import Architecture, Kind, ModelConfig


@section
class MeanConfig(Kind):
    """The mean of all values up to the query's."""

    kind: Literal["mean"] = "mean"

    keeps_keys = False

    def sites(self) -> tuple[str, ...]:
        return ("v", "o")

    def head_states(self, model: ModelConfig) -> int:
        return model.num_attention_heads * (model.features_per_head + 1)


class MeanAttention(StateAttention):
    """o_i = R_i' (sum over j <= i of R_j v_j) / (i + 1)."""

    def __init__(self, config: ModelConfig, attn: MeanConfig, sites: Collection[str]) -> None:
        super().__init__(config, attn, sites)
        self.num_heads = config.num_attention_heads
        self.head_dim = config.features_per_head
        width = config.hidden_size
        self.v_proj = to_heads(width, config.num_key_value_heads, self.head_dim)
        self.o_proj = from_heads(self.num_heads, self.head_dim, width)

    def log_gamma(self) -> Tensor:
        return torch.zeros(self.num_heads)

    def sums(self, x_BTD: Tensor, at: Positions) -> Sums:
        v_BTGK = self.turn("v", split_heads(self.v_proj(x_BTD), self.head_dim), at)
        v_BTHK = for_queries(v_BTGK, self.num_heads)
        return {"values": (None, torch.cat([v_BTHK, torch.ones_like(v_BTHK[..., :1])], dim=-1))}

    def outputs(self, found: Mapping[str, Tensor], at: Positions) -> Tensor:
        sum_BTHK, count_BTH1 = found["values"].tensor_split([self.head_dim], dim=-1)
        # The count is 0 at padding.
        return self.turn("o", sum_BTHK / count_BTH1.clamp(min=1), at)


TOY: Any = MeanConfig()


@pytest.fixture(autouse=True)
def leaf(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the kind where the file rope_exp/attn/mean.py would."""
    module: Any = ModuleType("rope_exp.attn.mean")
    module.Config = MeanConfig
    module.Layer = MeanAttention
    monkeypatch.setitem(sys.modules, module.__name__, module)
    names = choices("attn")
    monkeypatch.setattr(identity, "choices", lambda folder: [*names, "mean"])


def test_its_laws_are_measured() -> None:
    for sites in [each for each in SUBSETS if set(each) <= {"v", "o"}]:
        checked = certificate(SIZES, make_pe(*sites), TOY)
        assert checked["measured"] == expected_class(sites)
        assert set(checked["formulas"]) == {"parallel", "cached"}


@torch.no_grad()
def test_its_cache_and_its_counts_hold() -> None:
    decoder = Decoder(Architecture(SIZES, make_pe("v", "o"), VOCAB, TOY))
    decoder.initialise(0)

    decoder.double()
    ids_BT = tokens(2, 9)
    cache = decoder.new_cache()
    parts = [decoder(part, cache=cache) for part in ids_BT.split([4, 1, 4], dim=1)]
    torch.testing.assert_close(torch.cat(parts, dim=1), decoder(ids_BT))
    assert num_numbers(cache) == 2 * SIZES.num_hidden_layers * TOY.head_states(SIZES)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with the file of the choice."""
    write(tmp_path / "attn" / "mean.yaml", "kind: mean\n")
    return tmp_path


OTHERS = (["pe=vo_rope"], ["pe=vo_rope", "attn=decay"])


def test_its_file_makes_runs_like_any_other(folder: Path) -> None:
    config = run_config(["pe=vo_rope", "attn=mean"], folder)
    assert config.attn == TOY
    assert config.group.startswith("nano-mean-stdlib-")
    assert RunConfig.from_dict(config.to_dict()) == config
    assert config.config_sha256 not in [run_config(words).config_sha256 for words in OTHERS]

    with refused("pe.rotate=", "q and k cannot rotate"):
        run_config(["attn=mean"], folder)
