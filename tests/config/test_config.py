"""Tests that every YAML composes, and that errors name the key, its value and what is allowed."""

import itertools

import pytest
from support.configs import NINE, composed

from rope_exp.compose import CONFIGS, run_config
from rope_exp.config import RunConfig, differing_keys
from rope_exp.sections import SITES


def test_the_nine_are_there_and_say_what_they_are() -> None:
    sites = {"nope": ""} | {name: name.removesuffix("_rope") for name in NINE if name != "nope"}
    assert {path.stem for path in (CONFIGS / "pe").glob("*.yaml")} >= set(NINE)
    for name in NINE:
        config = run_config([f"pe={name}"]).pe
        assert config.rotate == tuple(sites[name])
        assert config.label == name


@pytest.mark.parametrize("size", range(5))
def test_any_subset_of_sites_names_itself(size: int) -> None:
    for sites in itertools.combinations(SITES, size):
        config = run_config([f"pe.rotate=[{','.join(reversed(sites))}]"]).pe
        assert config.rotate == sites  # the order on the command line does not matter
        assert config.label == ("".join(sites) + "_rope" if sites else "nope")


def test_a_departing_key_shows_in_the_label() -> None:
    assert run_config(["pe.base=500000"]).pe.label == "qk_rope-base500000"
    assert run_config(["pe.precision=bf16"]).pe.label == "qk_rope-precisionbf16"
    assert (
        run_config(["pe.fraction=0.5", "pe.trainable=true"]).pe.label
        == "qk_rope-fraction0.5-trainable"
    )
    assert run_config(["pe.name=mine", "pe.base=500000"]).pe.label == "mine"


@pytest.mark.parametrize(
    ("words", "label"),
    [
        ("pe=alibi", "alibi"),
        ("pe=t5", "t5"),
        ("pe=sinusoidal", "sinusoidal"),
        ("pe=learned", "learned"),
        ("pe=alibi pe.rotate=[v,o]", "alibi-rotate_vo"),
        ("pe=vo_rope pe.bias=alibi", "alibi-rotate_vo"),
        ("pe=nope pe.bias=t5", "t5"),
        ("pe=t5 pe.bias=none", "nope"),
        ("pe=learned pe.bias=alibi", "learned+alibi"),
        ("pe=alibi pe.rotate=[q,k] pe.base=500000", "alibi-rotate_qk-base500000"),
        ("pe.layers=[1,1,1,0]", "qk_rope-layers_1110"),
        ("pe.trainable=log pe.trainable_lr=10", "qk_rope-trainablelog-trainable_lr10"),
        ("pe.trainable=raw", "qk_rope-trainable"),
    ],
)
def test_a_scheme_has_one_name_however_it_is_said(words: str, label: str) -> None:
    """A label follows from the values, so each spelling gives the same config and hash."""
    config = run_config(words.split())
    assert config.pe.label == label
    assert run_config([*words.split(), "pe.name=QK-RoPE"]).config_sha256 == config.config_sha256


def test_a_size_brings_its_budget_and_tokenizer() -> None:
    """The command line overrides both."""
    config = run_config(["model=1b", "data=fineweb_edu", "tracker=wandb"])
    assert (config.train.name, config.tokenizer.name, config.optim.lr) == ("1b", "bpe_32k", 3e-4)
    config = run_config(["model=1b", "train=nano", "tokenizer=bytes", "optim.lr=0.01"])
    assert (config.train.name, config.tokenizer.name, config.optim.lr) == ("nano", "bytes", 0.01)


@pytest.mark.parametrize(
    ("overrides", "name"),
    [
        (["data=stdlib"], "stdlib"),
        (["data=files", "data.path=my/texts"], "files"),
        (["data=wikitext103"], "wikitext-103-raw-v1"),
        (["data=wikitext103", "data.path=me/ds"], "ds-wikitext-103-raw-v1"),
        (["data=wikitext103", "data.path=me/ds", "data.subset=null"], "ds"),
        (["data=fineweb_edu"], "fineweb-edu-sample-10BT"),
        (["data=hub", "data.path='owner/a corpus!'"], "a-corpus"),
        (["data=hub", "data.path=owner/x", "data.name=mine"], "mine"),
    ],
)
def test_a_corpus_never_bears_the_name_of_another(overrides: list[str], name: str) -> None:
    assert run_config(overrides).data.name == name


def test_a_key_that_is_left_out_has_its_default() -> None:
    values = composed().to_dict()
    del values["optim"]["lr"]
    del values["schedule"]
    config = run_config(["schedule.warmup_fraction=0.05"])  # nano has another
    assert RunConfig.from_dict(values) == RunConfig() == config


QUIET = [
    "train.log_every=7", "train.save_every=3", "train.eval_every=9", "train.keep_checkpoints=5",
    "tracker=wandb", "run.dir=elsewhere", "launch.max_parallel=2", "data.cache_dir=elsewhere",
    "train.peak_tflops=100", "run.init_from=elsewhere",
]  # fmt: skip
LOUD = [
    "optim.lr=0.1", "train.num_steps=7", "train.seq_len=64", "train.precision=fp32",
    "data.holdout_fraction=0.1", "tokenizer.vocab_size=512", "model.rms_norm_eps=1e-6",
    "schedule=wsd",
    "train.eval_sequences=8", "data.seed=5",
    "data.reset_positions=true", "data.document_mask=true", "data.random_start=256",
    f"init_weights={'a' * 64}",
]  # fmt: skip


@pytest.mark.parametrize("override", QUIET)
def test_settings_are_in_no_hash(override: str) -> None:
    assert run_config([override]).config_sha256 == run_config([]).config_sha256


@pytest.mark.parametrize("override", LOUD)
def test_numeric_keys_are_in_both_hashes(override: str) -> None:
    usual, changed = run_config([]), run_config([override])
    assert changed.config_sha256 != usual.config_sha256
    assert changed.group_sha256 != usual.group_sha256
    assert changed.group != usual.group


def test_pe_and_seed_are_in_the_configs_hash_alone() -> None:
    usual = run_config([])
    for override in ("pe=vo_rope", "seed=3", "pe.base=500"):
        changed = run_config([override])
        assert changed.config_sha256 != usual.config_sha256
        assert changed.group_sha256 == usual.group_sha256
        assert changed.folder != usual.folder


def test_differing_keys_show_both_values() -> None:
    old, new = run_config([]).to_dict(), run_config(["optim.lr=0.1", "seed=2"]).to_dict()
    assert differing_keys(old, new) == ["optim.lr: 0.003 -> 0.1", "seed: 0 -> 2"]
    assert differing_keys(old, old) == []
