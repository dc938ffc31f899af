"""What a command line may ask of the config, and the one sentence that refuses the rest."""

import pytest
from support.refused import refused

from rope_exp.config.command import read_command
from rope_exp.config.compose import config_loader, run_config
from rope_exp.config.overrides import MAX_RUNS, check_overrides
from rope_exp.system.errors import ConfigError

HYDRAS = [
    "hydra.run.dir=/elsewhere",
    "hydra.sweep.dir=elsewhere",
    "hydra.output_subdir=x",
    "+hydra.job.env_set.X=1",
    "hydra.searchpath=[pkg://canary]",
    "hydra/job_logging=default",
    "hydra.mode=MULTIRUN",
    "hydra={mode:RUN}",
    "+pe@hydra.callbacks=vo_rope",
    "hydra.launcher={_target_:os.system}",
    "hydra.launcher._target_=os.system",
    "hydra.launcher.partition=a,b",
    "~hydra.run.dir",
]


@pytest.mark.parametrize("override", HYDRAS)
def test_hydras_own_settings_are_fixed(override: str) -> None:
    with refused(override.lstrip("+~").partition("=")[0], "Hydra's own settings are fixed"):
        check_overrides([override], config_loader(None))


ELSEWHERE = [
    "pe={_target_:os.system}",
    "+experiment=../../elsewhere",
    "pe=../pe/vo_rope",
    "+pe@run=../model/nano",
]


@pytest.mark.parametrize("override", ELSEWHERE)
def test_a_choice_is_a_file_of_its_group(override: str) -> None:
    with refused(override.lstrip("+").partition("=")[0].partition("@")[0], "no such choice"):
        check_overrides([override], config_loader(None))


def test_what_needs_no_file_to_mention_it() -> None:
    """A key becomes Hydra's ++key, a choice and Hydra's own stay, an unknown key is refused."""
    words = ["train.seq_len=64", "++seed=1", "run={group: a}", "pe=glob(q*)", "hydra.verbose=true"]
    spelled = ["++train.seq_len=64", "++seed=1", "++run={group: a}", *words[3:]]
    overrides = check_overrides(words, config_loader(None))
    assert [override.input_line for override in overrides] == spelled


RESOLVERS = [
    "${oc.env:HOME}",
    "${oc.env:HOME,x}",
    "a${oc.decode:1}b",
    "${oc.create:[1]}",
    "${hydra:job.id}",
    "${${pe.name}:HOME}",
    "${ oc.env:HOME }",
    "${hydra.runtime.cwd}",
]


@pytest.mark.parametrize("resolver", RESOLVERS)
def test_no_value_is_read_from_the_environment(resolver: str) -> None:
    with refused("data.cache_dir=", "read the environment"):
        run_config([f"data.cache_dir='{resolver}'"])
    with refused("data.cache_dir"):
        run_config([f"data.cache_dir={resolver}"])


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
    ("seed=" + "9" * 5000, "seed: "),
    ("seed=-1", "seed=-1: "),
    ("seed=1e400", "seed=Infinity: "),
    ("optim.lr=1e400", "optim.lr=Infinity: "),
    ("optim.lr=" + "9" * 400, "optim.lr=9"),
    ("optim=null", "optim=null: "),
    ("model=null", "model=null: "),
    ("pe=null", "pe=null: "),
    ("pe=[]", "pe=[]: "),
    ("pe=[nope,vo_rope]", "pe="),
    ("train={}", "train={}: "),
    ("~run", "run: nothing is taken out with ~"),
    ("~optim", "optim: nothing is taken out with ~"),
    ("~seed=0", "seed: nothing is taken out with ~"),
    ("+seed=1", "seed: is a key already; leave out the +"),
    ("+data.seed=1", "data.seed: is a key already; leave out the +"),
    ("++nosuch.key=1", "nosuch.key: there is no such key"),
    ("pe.rotate=null", "pe.rotate=null: "),
    ("pe.rotate={a:1}", "pe.rotate: "),
    ("pe.rotate=" + "[" * 12 + "q" + "]" * 12, "pe.rotate="),
    ("pe.rotate=" + "[" * 3000 + "]" * 3000, "pe.rotate: "),
    ("pe.base=1e300", "pe.base=1e+300: "),
    ("pe.fraction=1e-300", "pe.fraction=1e-300: "),
    ("pe.start=16777216", "pe.start=16777216: "),
    ("model.num_hidden_layers=1000000000", "model.num_hidden_layers=1000000000: "),
    ("tokenizer.vocab_size=4294967296", "tokenizer.vocab_size=4294967296: "),
    ("train.num_steps=9223372036854775808", "train.num_steps=9223372036854775808: "),
    ("train.seq_len=100000000", "pe.start=0: "),
    ("seed=???", "seed: "),
    ("seed=${nosuch}", "seed: "),
    ("seed=${seed}", "seed: "),
    ("=", "override==: "),
    ("=1", "override==1: "),
    ("seed=", "seed=: "),
    ("seed=0,1", "seed: several values make a sweep"),
    ("seed=range(0,3)", "seed: several values make a sweep"),
    ("experiment=nine", "experiment: nothing is chosen there yet; did you mean +experiment="),
    ("lr=0.1", "lr: there is no such key; did you mean optim.lr?"),
    ("run.dir=~nosuchuser/x", "run.dir: its value cannot be read"),
    ("run.dir='~nosuchuser/x'", "run.dir=~nosuchuser/x: "),
    ("pe=glob(zz*)", "pe: the sweep is empty: nothing matches among alibi, k_rope"),
    ("seed=range(3,3)", "seed: the sweep is empty"),
    (f"seed=range(0,{10**12})", f"seed: makes a sweep of more than {MAX_RUNS:,} runs"),
    ("optim.lr=range(0.0,1.0,1e-12)", "optim.lr: makes a sweep"),
    ("optim.lr=interval(0,1)", "optim.lr: makes a sweep"),
]


@pytest.mark.parametrize(
    ("override", "sentence"), MISTAKES, ids=[case[0][:30] for case in MISTAKES]
)
def test_a_mistake_is_one_sentence_with_its_key(override: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as error:
        run_config([override])
    assert str(error.value).startswith(sentence)
    assert str(error.value).isprintable()


USAGE = [
    (["--pe", "x"], "unrecognized arguments: --pe"),
    (["-m", "--cfg", "job"], "--multirun and --cfg exclude each other"),
    (["--resolve"], "--resolve needs --cfg"),
    (["--cfg", "nosuch"], "invalid choice: 'nosuch'"),
    (["--config-name", "nosuch"], "--config-name: "),
    (["--config-path", "/elsewhere"], "--config-path: "),
    (["--experimental-rerun", "x.pickle"], "--experimental-rerun: "),
]


@pytest.mark.parametrize(("words", "named"), USAGE, ids=[" ".join(case[0]) for case in USAGE])
def test_a_mistaken_flag_is_one_sentence(words: list[str], named: str) -> None:
    with refused(named):
        read_command(words)
