"""Tests that a new kind of attention, one module and one choice file, works everywhere."""

import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import pytest
import torch
from support.command import write
from support.kinds import subsets_of
from support.models import SIZES, VOCAB, fed, make_pe, num_numbers, tokens
from support.refused import refused
from torch import Tensor

from rope_exp import identity
from rope_exp.attention import Positions, split_heads
from rope_exp.attn._recurrence import StateAttention, Terms
from rope_exp.compose import run_config
from rope_exp.config import Architecture, RunConfig
from rope_exp.decoder import Decoder
from rope_exp.identity import choice_names, section
from rope_exp.laws import certificate, expected_class
from rope_exp.sections import AttentionConfig, ModelConfig


@section
class MeanConfig(AttentionConfig):
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
        self.v_proj = self.to_heads(config.num_key_value_heads, self.head_dim)
        self.o_proj = self.from_heads()

    def sums(self, x_BTD: Tensor, positions: Positions) -> list[Terms]:
        v_BTGK = self.rotate("v", split_heads(self.v_proj(x_BTD), self.head_dim), positions)
        return [(None, torch.cat([v_BTGK, torch.ones_like(v_BTGK[..., :1])], dim=-1))]

    def outputs(self, results: Sequence[Tensor], positions: Positions) -> Tensor:
        sum_BTHK, count_BTH1 = results[0].tensor_split([self.head_dim], dim=-1)
        return self.rotate("o", sum_BTHK / count_BTH1, positions)


TOY: Any = MeanConfig()


@pytest.fixture(autouse=True)
def leaf(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the kind where the file rope_exp/attn/mean.py would."""
    module: Any = ModuleType("rope_exp.attn.mean")
    module.Config = MeanConfig
    module.Layer = MeanAttention
    monkeypatch.setitem(sys.modules, module.__name__, module)
    names = choice_names("attn")
    monkeypatch.setattr(identity, "choice_names", lambda folder: [*names, "mean"])


@torch.no_grad()
def test_its_laws_its_cache_and_its_counts_hold() -> None:
    for sites in subsets_of(TOY):
        checked = certificate(SIZES, make_pe(*sites), TOY)
        assert checked["measured"] == expected_class(sites)
        assert set(checked["formulas"]) == {"parallel", "cached"}

    decoder = Decoder(Architecture(SIZES, make_pe("v", "o"), VOCAB, TOY)).double()
    decoder.initialise(0)
    ids_BT = tokens(2, 9)
    cache = decoder.new_cache()
    torch.testing.assert_close(fed(decoder, ids_BT, [4, 1, 4], cache), decoder(ids_BT))
    assert num_numbers(cache) == 2 * SIZES.num_hidden_layers * TOY.head_states(SIZES)


def test_its_file_makes_runs_like_any_other(tmp_path: Path) -> None:
    write(tmp_path / "attn" / "mean.yaml", "kind: mean\n")
    config = run_config(["pe=vo_rope", "attn=mean"], tmp_path)
    assert config.attn == TOY
    assert config.group.startswith("nano-mean-stdlib-")
    assert RunConfig.from_dict(config.to_dict()) == config
    other = run_config(["pe=vo_rope", "attn=decay"])
    assert config.config_sha256 != other.config_sha256

    with refused("pe.rotate=", "q and k cannot rotate"):
        run_config(["attn=mean"], tmp_path)
