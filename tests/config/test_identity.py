"""Tests of the hashes that identify runs, which must never change."""

import dataclasses

import pytest
from support.configs import NINE

from rope_exp.attn.decay import Config as DecayConfig
from rope_exp.attn.latent import Config as LatentConfig
from rope_exp.attn.linear import Config as LinearConfig
from rope_exp.attn.retention import Config as RetentionConfig
from rope_exp.attn.shared import Config as SharedConfig
from rope_exp.compose import run_config
from rope_exp.config import RunConfig
from rope_exp.decoder import Decoder, weights, weights_sha256
from rope_exp.files import json_sha256
from rope_exp.identity import keys_with, numeric, numeric_values, one_of, setting
from rope_exp.optim.muon import Config as MuonConfig
from rope_exp.schedule.wsd import Config as WsdConfig
from rope_exp.sections import AdamWConfig, CosineConfig, DataConfig, PeConfig

# A released default never changes: hashes leave out defaults, so they would not show it.
DEFAULTS = {
    "seed": 0,
    "row_name": None,
    "init_weights": None,
    "pe": {
        "name": "QK-RoPE", "rotate": ["q", "k"], "base": 10000.0, "fraction": 1.0,
        "trainable": False, "start": 0, "precision": "float32",
        "base_vo": None, "fraction_vo": None, "layers": None, "layers_vo": None,
        "trainable_lr": 1.0, "trainable_scope": "model", "input": "none", "input_scale": None,
        "bias": "none",
        "code": None,
        "code_sha256": None,
        "source": None,
    },
    "model": {
        "name": "nano", "hidden_size": 128, "intermediate_size": 352, "num_hidden_layers": 4,
        "num_attention_heads": 2, "num_key_value_heads": 2, "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False, "head_dim": None, "window": None, "match_params": None,
        "qk_norm": False, "token_shift": False, "window_layers": None,
    },
    "attn": {"kind": "softmax", "sink": False},
    "data": {
        "name": "stdlib", "kind": "stdlib", "path": None, "subset": None, "revision": None,
        "text_column": None, "sample_by": None, "validation_split": None,
        "holdout_fraction": 0.05, "max_tokens": None, "cache_dir": None, "seed": None,
        "reset_positions": False, "document_mask": False, "random_start": 0,
        "order": "plain", "period": None,
    },
    "tokenizer": {
        "name": "bpe_2k", "kind": "bpe", "vocab_size": 2048, "train_bytes": 20_000_000,
        "path": None, "revision": None,
    },
    "optim": {
        "name": "adamw", "lr": 3e-3, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1,
        "grad_clip": 1.0,
    },
    "schedule": {"name": "cosine", "warmup_fraction": 0.05, "final_fraction": 0.1},
    "train": {
        "name": "nano", "num_steps": 500, "global_batch_size": 16, "micro_batch_size": None,
        "seq_len": 256,
        "eval_every": 50, "eval_sequences": 128, "save_every": 250,
        "keep_checkpoints": 2, "log_every": 10, "precision": "auto", "compile": "auto",
        "deterministic": "auto", "peak_tflops": None, "probes": [], "objective": "causal",
        "stages": None,
    },
    "tracker": {
        "name": "none", "mode": "online", "project": "rope_exp", "entity": None, "tags": [],
        "notes": None, "run_name": None,
    },
    "launch": {
        "name": "local", "device": "auto", "num_processes": 1, "max_parallel": "auto",
        "inline": False, "runs_per_gpu": 1, "cells_per_job": 1, "num_threads": "auto",
    },
    "run": {"dir": None, "group": None, "fresh": False, "init_from": None},
}  # fmt: skip

# The kinds of attention other than softmax, and the optimizer other than AdamW.
KINDS = {
    LinearConfig: {"kind": "linear", "form": "numerator", "eps": 1e-6},
    RetentionConfig: {"kind": "retention"},
    DecayConfig: {"kind": "decay", "gamma": "retnet", "normalise": "none"},
    LatentConfig: {
        "kind": "latent", "kv_rank": 64, "q_rank": None, "nope_dim": 48, "rope_dim": 16,
        "value_dim": 64, "value_rope": False,
    },
    SharedConfig: {
        "kind": "shared", "form": "s2", "groups": 1, "nope_dim": 48, "rope_dim": 16,
        "norm": False, "sink": False,
    },
}  # fmt: skip
MUON = {
    "name": "muon", "lr": 3e-3, "momentum": 0.95, "betas": (0.9, 0.95), "eps": 1e-8,
    "weight_decay": 0.1, "grad_clip": 1.0,
}  # fmt: skip

WSD = {"name": "wsd", "warmup_fraction": 0.05, "final_fraction": 0.0, "decay_fraction": 0.2}

# The first 16 digits of config_sha256 and group_sha256. Hashes cover departures from the schema's
# defaults, and presets may depart: `nano` does with its warmup, which is set back here.
WARMUP = "schedule.warmup_fraction=0.05"
HASHES = {
    (): ("44136fa355b3678a", "44136fa355b3678a"),
    ("pe=vo_rope",): ("be053c82d26df225", "44136fa355b3678a"),
    ("seed=3", "pe=qkvo_rope", "pe.base=500000"): ("9aca423dcbd58274", "44136fa355b3678a"),
    ("model=1b", "data=fineweb_edu"): ("3f93ef319468b043", "3f93ef319468b043"),
    ("schedule=wsd", "optim.lr=0.001", "train.precision=fp32"): (
        "d4960b590dca73be",
        "d4960b590dca73be",
    ),
    ("model=sequel", "tokenizer=bytes", "data.seed=7", "train.micro_batch_size=4"): (
        "52f410580fa7d8c3",
        "52f410580fa7d8c3",
    ),
    ("attn=mla",): ("dc46fe5d41d5c73a", "dc46fe5d41d5c73a"),
    ("attn=shared_s1", "model.window=64"): ("ea41696d3a04f0fb", "ea41696d3a04f0fb"),
    ("attn=decay", "pe=vo_rope", "attn.gamma=learned"): ("c01dbb875f8fa89c", "c129835e11cb2f24"),
    ("train.objective=mlm",): ("fbfc3521e8873c54", "fbfc3521e8873c54"),
    ("pe=vo_rope", "train.stages=[[512,200],[128,300,16]]"): (
        "66aa614c745b3292",
        "b25c10a0f0d2065f",
    ),
}

MUON_SHA256 = "cff3586e2f638063"

# The initial weights of all nine variants at the default size, unchanged since the first table.
INIT_SHA256 = "974a1ad689b595d8052f2b532ed25f5543828304e29755ad3a3f36e2959d55ab"


def test_the_keys_that_determine_tokens() -> None:
    """The fingerprint of prepared data covers these; one that is missing serves stale tokens."""
    assert keys_with("of_tokens", DataConfig) == [
        "kind", "subset", "revision", "text_column", "sample_by", "validation_split",
        "holdout_fraction", "max_tokens",
    ]  # fmt: skip


def test_the_keys_that_give_a_variant_parameters() -> None:
    own = ["trainable", "trainable_scope", "input", "bias", "code_sha256"]
    assert keys_with("own_parameters", PeConfig) == own


def test_defaults_are_what_they_were() -> None:
    """A new key is added here with its default; existing lines never change."""
    assert RunConfig().to_dict() == DEFAULTS
    assert dataclasses.asdict(WsdConfig()) == WSD
    assert dataclasses.asdict(MuonConfig()) == MUON
    for kind, defaults in KINDS.items():
        assert dataclasses.asdict(kind()) == defaults


@pytest.mark.parametrize("overrides", HASHES, ids=" ".join)
def test_hashes_are_what_they_were(overrides: tuple[str, ...]) -> None:
    config = run_config([WARMUP, *overrides])
    expected = HASHES[overrides]
    assert (config.config_sha256[:16], config.group_sha256[:16]) == expected


SETTINGS = {
    "pe": {"source"},
    "model": {"name", "match_params"},
    "data": {"name", "cache_dir"},
    "tokenizer": {"name"},
    "train": {
        "name", "eval_every", "save_every", "keep_checkpoints", "log_every", "peak_tflops",
        "probes",
    },
    "tracker": set(DEFAULTS["tracker"]),  # type: ignore[call-overload]
    "launch": set(DEFAULTS["launch"]),  # type: ignore[call-overload]
    "run": set(DEFAULTS["run"]),  # type: ignore[call-overload]
}  # fmt: skip


def test_every_field_but_these_is_numeric() -> None:
    """Every field is declared as numeric or as a setting; a new setting is added to SETTINGS."""
    numeric = numeric_values(RunConfig())
    for section, values in DEFAULTS.items():
        if isinstance(values, dict):
            left_out = values.keys() - numeric.get(section, {}).keys()
            assert left_out == SETTINGS.get(section, set()), section
    assert "seed" in numeric


@pytest.mark.parametrize("name", NINE)
def test_the_nine_begin_where_they_always_began(name: str) -> None:
    decoder = Decoder(run_config([f"pe={name}"]).architecture(2048))
    decoder.initialise(0)
    assert weights_sha256(weights(decoder)) == INIT_SHA256


# -- a key that is added later -----------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class LaterOptim(AdamWConfig):
    """The optimizer's section of a later version, with two more keys."""

    amsgrad: bool = numeric(False)
    fused: bool = setting(True)


@dataclasses.dataclass(frozen=True)
class LaterRun(RunConfig):
    """The schema of a later version."""

    optim: AdamWConfig = one_of(LaterOptim())
    ema: float = numeric(0.0)


@pytest.mark.parametrize("overrides", HASHES, ids=" ".join)
def test_a_key_added_later_changes_no_identity(overrides: tuple[str, ...]) -> None:
    """The later schema reads an old folder's mapping, and the hashes stay the same."""
    old = run_config(overrides)
    later = LaterRun.from_dict(old.to_dict())

    assert isinstance(later, LaterRun)
    assert later.optim.amsgrad is False
    assert later.config_sha256 == old.config_sha256
    assert later.group_sha256 == old.group_sha256


def test_a_key_added_later_is_in_the_hash_where_it_departs() -> None:
    values = RunConfig().to_dict()
    plain = LaterRun.from_dict(values)
    departing = LaterRun.from_dict(values | {"ema": 0.9})
    quiet = LaterRun.from_dict(values | {"optim": {"fused": False}})

    assert departing.config_sha256 != plain.config_sha256
    assert departing.group_sha256 != plain.group_sha256
    assert quiet.config_sha256 == plain.config_sha256


# -- how hashes are made -----------------------------------------------------------------------


def test_departures_are_the_numeric_values_that_depart() -> None:
    config = run_config([WARMUP, "optim.lr=0.1", "train.log_every=3", "pe=vo_rope"])
    expected = {"pe": {"name": "VO-RoPE", "rotate": ("v", "o")}, "optim": {"lr": 0.1}}
    assert numeric_values(config, departing=True) == expected
    assert config.config_sha256 == json_sha256(expected)
    assert config.group_sha256 == json_sha256({"optim": {"lr": 0.1}})


def test_muon_has_its_hash() -> None:
    assert run_config([WARMUP, "optim=muon"]).config_sha256.startswith(MUON_SHA256)


def test_another_kind_of_schedule_shows_its_name() -> None:
    """Its defaults are no departures, so only the name distinguishes it from the cosine."""
    assert numeric_values(RunConfig(schedule=WsdConfig()), departing=True) == {
        "schedule": {"name": "wsd"}
    }
    assert numeric_values(RunConfig(schedule=CosineConfig()), departing=True) == {}


def test_the_default_of_a_key_and_its_value_written_out_are_one() -> None:
    written = run_config([WARMUP, "optim.lr=3.0e-3", "pe.base=10000", "schedule=cosine"])
    assert written.config_sha256 == RunConfig().config_sha256
