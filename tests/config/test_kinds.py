"""Tests of the configs of attention kinds: parameter counts, refusals and identity."""

import pytest
import torch
import yaml
from support.kinds import KINDS
from support.models import SIZES, make_pe

from rope_exp.compose import CONFIGS, run_config
from rope_exp.config import Architecture
from rope_exp.costs import cached_sizes, num_parameters
from rope_exp.decoder import Decoder
from rope_exp.sections import AttentionConfig

# Numbers cached per token and layer, and parameters: at the sequel's shapes at small size, and in
# millions in the sequel's own table, which lacks the last three rows.
ROWS = {
    "mha": (512, 4_212_992, 4096, 931),
    "mla": (144, 4_229_888, 576, 894),
    "mla_wide": (144, 4_819_712, 576, 989),
    "gqa2": (128, 3_819_776, 512, 842),
    "gqa2_wide": (192, 4_147_456, 768, 899),
    "gqa1": (128, 4_344_064, 512, 943),
    "gqa1_pr": (128, 4_344_064, 512, 943),
    "gqa2_s1": (160, 4_376_832, 640, 946),
    "gqa2_s2": (128, 4_344_064, 512, 943),
    "gqa4_s2": (128, 3_819_776, 512, 842),
    "gqa4_wide_s2": (192, 4_147_456, 768, 899),
    "gqa1_s3": (144, 5_540_096, 576, 1171),
    "gqa2_s2_not_back": (128, 4_344_064),
    "gqa2_v_unrotated": (160, 4_344_064),
    "mla_vo": (144, 4_360_960),
}


@pytest.mark.parametrize("name", ["mla", "mla_vo", "shared_s1", "shared_s3", "deepseek_v4"])
def test_a_kind_with_its_own_sizes_takes_any_width(name: str) -> None:
    """LLaMA's heads would have no feature."""
    words = "model.hidden_size=16 model.num_attention_heads=32 model.num_key_value_heads=32"
    decoder = Decoder(run_config([f"attn={name}", *words.split()]).architecture(17))
    decoder.initialise(0)
    assert decoder.get_parameter("model.layers.0.self_attn.o_proj.weight").any()


@pytest.mark.parametrize("name", ROWS)
def test_a_row_has_its_parameters_and_its_cache(name: str) -> None:
    cached, parameters, *sequel = ROWS[name]
    config = run_config([f"+row/sequel_mini={name}"])
    assert cached_sizes(config.attn, config.model, config.pe)[0] == cached
    assert num_parameters(config.architecture(2048)) == parameters
    if sequel:
        config = run_config([f"+row/sequel={name}"])
        assert cached_sizes(config.attn, config.model, config.pe)[0] == sequel[0]
        count = num_parameters(config.architecture(79_800))
        assert count / 1e6 == pytest.approx(sequel[1], rel=0.002)


@pytest.mark.parametrize(("folder", "num_rows"), [("sequel_mini", len(ROWS)), ("sequel", 12)])
def test_an_experiment_runs_every_row(folder: str, num_rows: int) -> None:
    experiment = yaml.safe_load((CONFIGS / f"experiment/{folder}.yaml").read_text())
    swept = experiment["hydra"]["sweeper"]["params"][f"+row/{folder}"].split(",")
    assert len(swept) == num_rows
    assert {*swept} == {path.stem for path in (CONFIGS / "row" / folder).iterdir()}
    assert run_config([f"+experiment={folder}", f"+row/{folder}=mha", "hydra.mode=RUN"])


@pytest.mark.parametrize("attn", KINDS, ids=str)
def test_a_kind_keeps_the_weights_that_softmax_has(attn: AttentionConfig) -> None:
    """Weights of the same name and shape are bitwise equal; a kind's own do not shift them."""
    plain = Decoder(Architecture(SIZES, make_pe(), 61))
    other = Decoder(Architecture(SIZES, make_pe(), 61, attn))
    plain.initialise(3)
    other.initialise(3)
    of_plain = dict(plain.named_parameters())
    for name, parameter in other.named_parameters():
        shared = of_plain.get(name)
        if shared is not None and shared.shape == parameter.shape:
            assert torch.equal(parameter, shared), name
        elif parameter.ndim == 2:
            assert 0 < float(parameter.detach().std()) < 0.03, name
