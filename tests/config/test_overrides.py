"""Tests of overrides on the command line, and of the one-sentence errors for bad ones."""

import pytest
from support.refused import refused

from rope_exp.compose import compose_jobs, run_config
from rope_exp.errors import ConfigError

CHOICES = [
    ("pe=vo_rop", "pe=vo_rop: there is no such choice; did you mean vo_rope?"),
    ("pe=zz", "pe=zz: there is no such choice; choose one of alibi, fox, fox_vo, k_rope"),
    ("+experiment=nin", "experiment=nin: there is no such choice; did you mean nine?"),
    ("+experiment=../../elsewhere", "experiment"),
    ("model=nano2", "model=nano2: there is no such choice; did you mean nano?"),
    ("hydra/launcher=nosuch", "hydra/launcher=nosuch: this plugin of Hydra is not installed"),
]


@pytest.mark.parametrize(("override", "sentence"), CHOICES, ids=[case[0] for case in CHOICES])
def test_a_choice_that_is_none_names_the_nearest(override: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as error:
        run_config([override])
    assert str(error.value).startswith(sentence)


def test_a_reference_to_another_key_is_its_value() -> None:
    assert run_config(["seed=7", "data.seed=${seed}"]).data.seed == 7
    assert run_config(["train.eval_every=${train.num_steps}"]).train.eval_every == 500


SECRETS = ["tracker.api_key=hunter2", "+tracker.api_key=hunter2", "tracker.api_key=~hunter2"]


@pytest.mark.parametrize("override", SECRETS)
def test_the_value_of_an_unknown_key_is_not_shown(override: str) -> None:
    with pytest.raises(ConfigError, match=r"^tracker.api_key: ") as error:
        run_config([override])
    assert "hunter2" not in str(error.value)


MISTAKES = [
    ("seed=" + "9" * 5000, "seed: its value cannot be read"),
    ("seed=1e400", "seed=Infinity: "),
    ("optim.lr=" + "9" * 400, "optim.lr=9"),
    ("+seed=1", "seed: is a key already; leave out the +"),
    ("pe.rotate=null", "pe.rotate=null: "),
    ("pe.rotate={a:1}", "pe.rotate: "),
    ("pe.rotate=" + "[" * 12 + "q" + "]" * 12, "pe.rotate="),
    ("pe.start=16777216", "pe.start=16777216: "),
    ("model.num_hidden_layers=1000000000", "model.num_hidden_layers=1000000000: "),
    ("tokenizer.vocab_size=4294967296", "tokenizer.vocab_size=4294967296: "),
    ("train.seq_len=100000000", "pe.start=0: "),
    ("seed=???", "seed: "),
    ("seed=${nosuch}", "seed: "),
    ("=", "override==: is not of the form"),
    ("pe=null", "pe=null: must be the name of a choice"),
    ("pe.rotate=" + "[" * 3000 + "]" * 3000, "pe.rotate: its value cannot be read"),
    ("seed=", "seed=: "),
    ("seed=0,1", "seed: several values make a sweep"),
    ("experiment=nine", "experiment: nothing is chosen there yet; did you mean +experiment="),
    ("modl=1b", "modl: there is no such key; did you mean model?"),
    ("lr=0.1", "lr: there is no such key; did you mean optim.lr?"),
    ("run.dir=~nosuchuser/x", "run.dir: its value cannot be read"),
    ("++nosuch.key=1", "nosuch: there is no such key"),
]


@pytest.mark.parametrize(
    ("override", "sentence"), MISTAKES, ids=[case[0][:30] for case in MISTAKES]
)
def test_a_mistake_is_one_sentence_with_its_key(override: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as error:
        run_config([override])
    assert str(error.value).startswith(sentence)
    assert str(error.value).isprintable()


def test_a_sweep_that_matches_nothing_is_refused() -> None:
    with refused("pe", "the sweep is empty"):
        compose_jobs(["pe=glob(zz*)"], multirun=True)


def test_what_is_deleted_has_its_default() -> None:
    """Hydra does the same; the identity is that of the default, too."""
    plain = run_config([]).config_sha256
    assert run_config(["~optim", "optim.lr=0.003"]).config_sha256 == plain
