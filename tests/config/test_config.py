"""Tests that every YAML composes, and that errors name the key, its value and what is allowed."""

from collections.abc import Callable
from pathlib import Path

import pytest
from support.configs import NINE, composed

from rope_exp.compose import CONFIGS, resolve, run_config
from rope_exp.config import RunConfig, differing_keys
from rope_exp.folder import read_config
from rope_exp.laws import certificate
from rope_exp.sections import SUBSETS
from rope_exp.sweep import acquire, admit


def test_the_nine_are_there_and_say_what_they_are() -> None:
    sites = {"nope": ""} | {name: name.removesuffix("_rope") for name in NINE if name != "nope"}
    assert {path.stem for path in (CONFIGS / "pe").glob("*.yaml")} >= set(NINE)
    for name in NINE:
        config = run_config([f"pe={name}"]).pe
        assert config.rotate == tuple(sites[name])
        assert config.label == name


def test_any_subset_of_sites_names_itself() -> None:
    for sites in SUBSETS:
        config = RunConfig.from_dict({"pe": {"rotate": [*reversed(sites)]}}).pe
        assert config.rotate == sites  # their order does not matter
        assert config.label == ("".join(sites) + "_rope" if sites else "nope")


@pytest.mark.parametrize(
    ("words", "label"),
    [
        ("pe=alibi", "alibi"),
        ("pe=learned", "learned"),
        ("pe=alibi pe.rotate=[v,o]", "alibi-rotate_vo"),
        ("pe=nope pe.bias=t5", "t5"),
        ("pe=t5 pe.bias=none", "nope"),
        ("pe=learned pe.bias=alibi", "learned+alibi"),
        ("pe=alibi pe.rotate=[q,k] pe.base=500000", "alibi-rotate_qk-base500000"),
        ("pe.layers=[1,1,1,0]", "qk_rope-layers_1110"),
        ("pe.trainable=log pe.trainable_lr=10", "qk_rope-trainablelog-trainable_lr10"),
        ("pe.trainable=raw", "qk_rope-trainable"),
        ("pe.base=500000", "qk_rope-base500000"),
    ],
)
def test_a_scheme_has_one_name_however_it_is_said(words: str, label: str) -> None:
    """A label follows from the values, so each spelling gives the same config and hash."""
    config = run_config(words.split())
    assert config.pe.label == label
    assert config.replace("pe", name="QK-RoPE").config_sha256 == config.config_sha256


def test_a_size_brings_its_budget_and_tokenizer() -> None:
    """The command line overrides both."""
    config = run_config(["model=1b", "data=fineweb_edu", "tracker=wandb"])
    assert config.train.name == "1b"
    assert config.tokenizer.name == "bpe_32k"
    assert config.optim.lr == 3e-4
    config = run_config(["model=1b", "train=nano", "tokenizer=bytes", "optim.lr=0.01"])
    assert config.train.name == "nano"
    assert config.tokenizer.name == "bytes"
    assert config.optim.lr == 0.01


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("data=files data.path=my/texts", "files"),
        ("data=wikitext103", "wikitext-103-raw-v1"),
        ("data=wikitext103 data.path=me/ds", "ds-wikitext-103-raw-v1"),
        ("data=wikitext103 data.path=me/d@s data.subset=null", "d-s"),
        ("data=hub data.path=owner/x data.name=mine", "mine"),
    ],
)
def test_a_corpus_never_bears_the_name_of_another(words: str, name: str) -> None:
    assert run_config(words.split()).data.name == name


def test_a_key_that_is_left_out_has_its_default() -> None:
    values = composed().to_dict()
    del values["optim"]["lr"]
    del values["schedule"]
    config = run_config(["schedule.warmup_fraction=0.05"])  # nano has another
    assert RunConfig.from_dict(values) == RunConfig() == config


def test_differing_keys_show_both_values() -> None:
    old, new = run_config([]).to_dict(), run_config(["optim.lr=0.1", "seed=2"]).to_dict()
    assert differing_keys(old, new) == ["optim.lr: 0.003 -> 0.1", "seed: 0 -> 2"]
    assert differing_keys(old, old) == []


def test_one_data_set_has_one_spelling() -> None:
    usual = run_config(["data=spikes"])
    assert run_config(["data=spikes", "data.period=1e-4"]).config_sha256 == usual.config_sha256
    assert run_config(["data=spikes", "data.period=0.01"]).config_sha256 != usual.config_sha256
    assert run_config(["data=addition", "data.order=reversed"]).data.name == "addition-reversed"


def test_losses_have_the_unit_of_their_data() -> None:
    assert run_config([]).unit == "nats per token"
    assert run_config(["data=addition"]).unit == "nats per answer token"
    assert run_config(["data=spikes"]).unit == "mean squared error"


def test_a_home_is_expanded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert run_config(["run.dir='~/x'"]).folder == tmp_path / "x"


@pytest.mark.parametrize("name", ["😀", "Ω ß 日本 a'b\"c\\d: #e", "n" * 255])
def test_an_odd_folder_is_stored_as_it_is(
    tiny: Callable[..., RunConfig], tmp_path: Path, name: str
) -> None:
    [run] = admit([resolve(tiny().replace("run", dir=str(tmp_path / name)))])
    assert acquire(run)
    run.unlock()
    assert read_config(tmp_path / name).run.dir == str(tmp_path / name)


@pytest.mark.parametrize("words", ["pe.base=1.0000001", "pe.base=1e30", "pe.fraction=0.04"])
def test_a_rotation_at_the_end_of_its_range_obeys_its_law(words: str) -> None:
    config = run_config(["pe=qkvo_rope", "pe.start=16000000", words])
    checked = certificate(config.model, config.pe)
    assert checked["measured"] == checked["expected"]
