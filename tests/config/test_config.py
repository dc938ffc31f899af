"""Tests that every YAML composes, and that errors name the key, its value and what is allowed."""

import itertools

import pytest
from hydra import compose, initialize_config_dir
from hydra.types import RunMode
from support.configs import NINE, composed
from support.refused import refused

from rope_exp.campaign.file import read_campaign
from rope_exp.compose import CONFIGS, compose_jobs, run_config
from rope_exp.config import RunConfig, differing_keys
from rope_exp.errors import ConfigError
from rope_exp.sections import SITES

GROUPS = ("pe", "model", "data", "tokenizer", "optim", "schedule", "train", "tracker", "launch")
CHOICES = [
    (group, path.stem) for group in GROUPS for path in sorted((CONFIGS / group).glob("*.yaml"))
]
NEEDS = {
    "data=files": ["data.path=somewhere"],
    "data=hub": ["data.path=some/where"],
    "tokenizer=pretrained": ["tokenizer.path=somewhere"],
    "tokenizer=task": ["data=addition"],
}


@pytest.mark.parametrize(("group", "choice"), CHOICES)
def test_every_yaml_composes_and_converts(group: str, choice: str) -> None:
    override = f"{group}={choice}"
    config = run_config([override, *NEEDS.get(override, [])])
    section = getattr(config, group)
    if group not in ("pe", "data"):
        assert section.name == choice
    assert RunConfig.from_dict(config.to_dict()) == config


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


MISTAKES = [
    ("pe=nosuch", "pe=nosuch", "choose one of alibi, fox, fox_vo, k_rope"),
    ("pe.rotate=[x]", 'pe.rotate=["x"]', "a list of some of q, k, v, o"),
    ("pe.rotate=q", "pe.rotate=q", "must be a list"),
    ("pe.fraction=0.01", "pe.fraction=0.01", "no pair"),
    ("pe.base=1", "pe.base=1", "greater than 1"),
    ("pe.name=../up", "pe.name=../up", "letters, digits"),
    ("train.foo=1", "train.foo", "no such key"),
    ("train.num_stepz=1", "train.num_stepz", "did you mean train.num_steps?"),
    ("train.num_steps=abc", "train.num_steps=abc", "whole number"),
    ("train.num_steps=0", "train.num_steps=0", "greater than or equal to 1"),
    ("train.global_batch_size=0", "train.global_batch_size=0", "greater than or equal to 1"),
    ("train.precision=fp8", "train.precision=fp8", "must be 'auto', 'bf16' or 'fp32'"),
    ("train.compile=maybe", "train.compile=maybe", "must be true or false, or 'auto'"),
    ("optim.lr=nan", "optim.lr=NaN", "finite number"),
    ("optim.betas=[0.9,1.0]", "optim.betas=[0.9, 1.0]", "less than 1"),
    ("optim.betas=[0.9]", "optim.betas=[0.9]", "too few values"),
    ("schedule.decay_fraction=0.1", "schedule.decay_fraction", "no such key"),
    ("schedule.name=linear", "schedule.name=linear", "one of cosine, wsd"),
    (
        "model.num_attention_heads=6",
        "model.num_attention_heads=6",
        "must divide model.hidden_size=128",
    ),
    ("model.num_attention_heads=128", "model.num_attention_heads=128", "must be even"),
    (
        "model.num_key_value_heads=3",
        "model.num_key_value_heads=3",
        "must divide model.num_attention_heads=2",
    ),
    ("tokenizer.vocab_size=10", "tokenizer.vocab_size=10", "257"),
    (
        "tokenizer.vocab_size=99999999999",
        "tokenizer.vocab_size=99999999999",
        "equal to 16777216",
    ),
    ("data=files", "data.path=null", "must name the corpus"),
    ("data.random_start=16777000", "data.random_start=16777000", "not exact in float32"),
    ("pe.start=16777000", "pe.start=16777000", "not exact in float32"),
    ("init_weights=abc", "init_weights=abc", "64 hexadecimal digits"),
    ("seed=-1", "seed=-1", "greater than or equal to 0"),
    ("run.group='a\\nb'", "run.group=", "letters, digits"),
    ("run.group=" + "a" * 300, "run.group=", "1 to 64"),
    ("+pe._target_=os.system", "pe._target_: ", "no such key"),
    (
        "+experiment=nosuch",
        "experiment=nosuch",
        "on_gpu, rates, retrieval, seeds, sequel, sequel_mini, spikes, stages, subsets",
    ),
    ("novalue", "override=novalue", "key=value"),
]


@pytest.mark.parametrize(("override", "shown", "allowed"), MISTAKES, ids=lambda text: text[:40])
def test_a_mistake_is_one_sentence(override: str, shown: str, allowed: str) -> None:
    """The sentence begins with the key and its value, and says what is allowed."""
    with refused(allowed, by=ConfigError) as sentence:
        run_config([override])
    assert sentence[0].startswith(shown)


def test_values_need_a_pair_to_rotate_of_their_own() -> None:
    with refused("pe.fraction_vo=0.01", "no pair", by=ConfigError):
        run_config(["pe=qkvo_rope", "pe.fraction_vo=0.01"])


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


def swept(experiment: str) -> dict[str, str]:
    """Return the parameters that an experiment sweeps over, as composed by Hydra."""
    with initialize_config_dir(version_base=None, config_dir=str(CONFIGS)):
        values = compose(
            "config", overrides=[f"+experiment={experiment}"], return_hydra_config=True
        )
    assert values.hydra.mode == RunMode.MULTIRUN
    return dict(values.hydra.sweeper.params)


def test_experiments_sweep_over_what_they_say() -> None:
    assert swept("nine") == {"pe": ",".join(NINE)}
    assert swept("seeds") == {"seed": "0,1,2,3,4", "pe": ",".join(NINE)}
    subsets = swept("subsets")["pe.rotate"].replace("],[", "] [").split()
    assert {run_config([f"pe.rotate={subset}"]).pe.rotate for subset in subsets} == {
        sites for size in range(5) for sites in itertools.combinations(SITES, size)
    }
    assert len(subsets) == 16
    assert swept("mlm") == {"seed": "0,1,2", "pe": ",".join(NINE)}
    assert swept("stages") == {"pe": ",".join(NINE)}


FOUR = "nope,qk_rope,vo_rope,qkvo_rope"


@pytest.mark.parametrize(
    ("experiment", "params", "num_runs"),
    [
        ("addition", {"data.order": "plain,reversed", "pe": ",".join(NINE)}, 18),
        ("copy", {"seed": "0,1,2", "pe": FOUR}, 12),
        ("retrieval", {"seed": "0,1,2", "pe": FOUR}, 12),
        ("spikes", {"seed": "0,1,2,3,4", "pe": "qk_rope,qkvo_rope"}, 10),
    ],
)
def test_experiments_on_generated_data_ask_it(
    experiment: str, params: dict[str, str], num_runs: int
) -> None:
    """Their keys equal those of the campaign of their name, except what a machine decides."""
    assert swept(experiment) == params
    configs = compose_jobs([f"+experiment={experiment}"]).configs
    assert len({config.config_sha256 for config in configs}) == num_runs
    for config in configs:
        assert config.data.kind == experiment
        assert config.train.probes == (config.data.task.probe,)  # type: ignore[union-attr]

    # The campaign's own words, without row and factors, make the run in which q and k rotate.
    mine = next(config for config in configs if config.pe.rotate == ("q", "k"))
    theirs = run_config(read_campaign(experiment, None).fixed)
    of_a_machine = ("train.precision", "train.compile", "train.deterministic")
    assert differing_keys(mine.numeric, theirs.numeric, of_a_machine) == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["data.sample_by=line"], "data.sample_by=line: is for data=files or hub alone"),
        (
            ["data=files", "data.path=x", "data.revision=a"],
            "data.revision=a: is for data=hub",
        ),
        (
            ["tokenizer=bytes", "tokenizer.revision=a"],
            "tokenizer.revision=a: is for tokenizer=pre",
        ),
        (["pe=sinusoidal", "model.hidden_size=33", "model.head_dim=8"], "must be even"),
        (["data.document_mask=true", "train.probes=[repeat]"], "would read across documents"),
    ],
    ids=lambda each: str(each)[:40],
)
def test_keys_without_effect_or_meaning_are_refused(words: list[str], said: str) -> None:
    with refused(said):
        run_config(words)
