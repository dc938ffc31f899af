"""Tests of composing a config: choices, keys, sweeps, and references to the environment."""

from collections.abc import Iterator
from operator import attrgetter
from pathlib import Path

import pytest
import yaml
from support.command import assert_refused, command, write
from support.configs import NINE
from support.refused import refused

from rope_exp.commands.plan import main as plan
from rope_exp.commands.sweep import main as sweep
from rope_exp.compose import CONFIGS, Composed, compose_runs, run_config, titles
from rope_exp.sections import SUBSETS


def test_our_own_files_are_allowed_in_a_users_folder(tmp_path: Path) -> None:
    for path in CONFIGS.rglob("*.yaml"):
        write(tmp_path / path.relative_to(CONFIGS), path.read_text())
    mine = (CONFIGS / "pe" / "vo_rope.yaml").read_text().replace("VO-", "My-")
    write(tmp_path / "pe" / "mine.yaml", mine)
    assert run_config(["pe=mine"], tmp_path).pe.name == "My-RoPE"


@pytest.mark.parametrize("choice", ["pe/qk_rope.yaml", "experiment/nine.yaml"])
def test_another_choice_of_a_name_of_ours_is_refused(tmp_path: Path, choice: str) -> None:
    """Hydra would silently ignore one of the two."""
    write(tmp_path / choice, (CONFIGS / choice).read_text() + "# mine\n")
    with refused("--config-dir", choice, "give it another"):
        compose_runs([], tmp_path)


BROKEN = {
    "- name: VO-RoPE\n": "pe/mine",
    "name: A\nname: B\n": "duplicate key",
    "name: A\nbase: " + "9" * 5000: "4300 digits",
    "\udcff": "utf-8",
    "name: !!python/object/apply:os.system [ls]\n": "pe/mine.yaml",
    "name: {a: b}\nrotate: []\n": "pe.name=",
}


@pytest.mark.parametrize("text", BROKEN, ids=lambda text: ascii(text)[:24])
def test_a_broken_file_is_one_sentence(tmp_path: Path, text: str) -> None:
    write(tmp_path / "pe" / "mine.yaml", text)
    with refused(BROKEN[text]):
        compose_runs(["pe=mine"], tmp_path)


def test_a_list_of_defaults_may_call_on_other_files(tmp_path: Path) -> None:
    """A user's file may use all of Hydra, such as lists of defaults."""
    write(tmp_path / "pe" / "mine.yaml", "defaults: [vo_rope, _self_]\nname: Mine\nbase: &a 100\n")
    config = run_config(["pe=mine"], tmp_path)
    assert config.pe.name == "Mine"
    assert config.pe.rotate == ("v", "o")
    assert config.pe.base == 100


def test_a_section_of_ones_own_has_its_keys(tmp_path: Path) -> None:
    """The keys exist even if the file does not merge the defaults of its kind."""
    write(tmp_path / "attn" / "mine.yaml", "kind: latent\n")
    config = run_config(["attn=mine", "attn.kv_rank=32", "pe=nope"], tmp_path)
    assert config == run_config(["attn=mla", "attn.kv_rank=32", "pe=nope"])
    with refused("attn.kv_rnk"):
        run_config(["attn=mine", "attn.kv_rnk=32"], tmp_path)


def test_the_environment_is_read_but_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    """Configs are saved with every run, so secrets stay unresolved, also through a reference."""
    monkeypatch.setenv("SCRATCH", "/scratch")
    monkeypatch.setenv("MY_TOKEN", "hunter2")
    words = [
        "data=files",
        "data.path=${oc.env:SCRATCH}/${oc.env:MY_TOKEN}",
        "data.cache_dir=${data.path}",
    ]
    data = run_config(words).data
    assert data.path == "/scratch/${oc.env:MY_TOKEN}"
    assert data.cache_dir == data.path
    assert run_config(["data=files", "data.path=${oc.env:NOT_SET,here}"]).data.path == "here"
    with refused("data.path", "NOT_SET"):
        run_config(["data=files", "data.path=${oc.env:NOT_SET}"])


def test_a_reference_to_another_key_is_its_value() -> None:
    assert run_config(["seed=7", "data.seed=${seed}"]).data.seed == 7
    assert run_config(["train.eval_every=${train.num_steps}"]).train.eval_every == 500


def names(composed: Composed) -> list[str]:
    return [config.name for config in composed.configs]


def test_an_experiment_is_a_sweep_in_its_own_order() -> None:
    assert names(compose_runs(["+experiment=nine"])) == [f"{pe}-s0" for pe in NINE]
    assert names(compose_runs(["+experiment=nine", "pe=k_rope,nope"])) == ["k_rope-s0", "nope-s0"]
    seeds = names(compose_runs(["+experiment=seeds", "pe=k_rope,nope"]))
    assert seeds == [f"{pe}-s{seed}" for seed in range(5) for pe in ("k_rope", "nope")]
    subsets = yaml.safe_load((CONFIGS / "experiment/subsets.yaml").read_text())
    swept = subsets["hydra"]["sweeper"]["params"]["pe.rotate"]
    assert swept == ",".join(f"[{','.join(sites)}]" for sites in SUBSETS)


def test_a_sweep_over_experiments_does_not_lose_theirs() -> None:
    """Hydra reads what to sweep before it composes the values that are swept."""
    words = ["+experiment=nine,documents"]
    with refused("experiment: a sweep over experiments would lose their own sweep, of pe; start"):
        compose_runs(words, multirun=True)
    # A command line that names what they sweep loses nothing.
    given = compose_runs([*words, "pe=nope,vo_rope", "data.random_start=0"], multirun=True)
    assert len(given.configs) == 4


MY_SWEEP = "# @package _global_\nhydra: {sweeper: {params: {pe: 'nope,vo_rope'}}}\n"


def test_an_experiment_that_asks_for_no_sweep_needs_m(tmp_path: Path) -> None:
    """Its values are swept with -m; chosen by a sweep, it would lose them, and is refused."""
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "mine.yaml").write_text(MY_SWEEP)
    (tmp_path / "experiment" / "other.yaml").write_text("# @package _global_\nseed: 1\n")
    composed = compose_runs(["+experiment=mine"], tmp_path, multirun=True)
    assert names(composed) == ["nope-s0", "vo_rope-s0"]

    words = ["--config-dir", str(tmp_path), "-m", "+experiment=other,mine"]
    lost = "experiment: a sweep over experiments would lose their own sweep, of pe; start"
    with refused(lost):
        plan(words)
    with refused(lost):
        sweep([*words[:2], "--list", words[3]])
    assert_refused(command(*words, cwd=tmp_path), lost)


@pytest.mark.parametrize("word", ["seed=range(0, 3, 0)", "optim.lr=range(0, 3.0, 0)"])
def test_a_range_that_never_ends_names_its_key(tmp_path: Path, word: str) -> None:
    key = word.partition("=")[0]
    with refused(f"{key}: is a range whose step is 0"):
        compose_runs([word], multirun=True)
    assert_refused(command("-m", word, cwd=tmp_path), f"{key}: is a range whose step is 0")


@pytest.mark.parametrize(
    ("word", "package"),
    [
        ("hydra/launcher=joblib", "hydra-joblib-launcher"),
        ("hydra/sweeper=nevergrad", "hydra-nevergrad-sweeper"),
    ],
)
def test_a_missing_plugin_says_how_to_install_it(word: str, package: str) -> None:
    with refused(f"{word}: there is no such choice; its plugin is not installed: `pip", package):
        compose_runs([word])
    with refused("hydra/launcher=mine: there is no such choice; choose one of basic, "):
        compose_runs(["hydra/launcher=mine"])


@pytest.mark.parametrize("word", ["optim.lr=interval(0.1, 0.2)", "optim.lr=tag(interval(1, 2))"])
def test_a_range_needs_a_sweeper_that_draws_from_it(tmp_path: Path, word: str) -> None:
    with refused("optim.lr: is a range, from which a sweeper of another package draws"):
        compose_runs([word], multirun=True)
    done = command("-m", word, cwd=tmp_path)
    assert_refused(done, "optim.lr: is a range, from which", "hydra/sweeper=optuna")


def test_a_sweep_has_one_launcher(tmp_path: Path) -> None:
    done = command("-m", "launch=slurm_local,local", cwd=tmp_path)
    assert_refused(done, "launch=slurm_local: a sweep has one launcher")


@pytest.mark.parametrize("word", ["run.group=1e5", "data.revision=1234567", "pe.name=true"])
def test_a_number_for_a_text_is_told_how_to_quote(word: str) -> None:
    key, _, value = word.partition("=")
    with refused(f"{key}=", f"""in quotes it is one: "{key}='...'", and '...' in a file"""):
        run_config(["data=hub", "data.path=owner/name", word])
    quoted = run_config(["data=hub", "data.path=owner/name", f"{key}='{value}'"])
    assert attrgetter(key)(quoted) == value


def test_a_sweep_is_every_value_with_every_other() -> None:
    """The first word varies slowest, as in Hydra's own sweeper."""
    composed = compose_runs(["seed=1,0", "pe=glob(q*)"], multirun=True)
    assert names(composed) == [
        f"{pe}-s{seed}" for seed in (1, 0) for pe in ("q_rope", "qk_rope", "qkv_rope", "qkvo_rope")
    ]
    assert names(compose_runs(["seed=3"], multirun=True)) == ["qk_rope-s3"]


def test_a_run_is_called_by_what_its_sweep_changes() -> None:
    """A title leaves out values that all runs share, and names variant and seed only once."""

    def called(*words: str, multirun: bool = True) -> list[str]:
        composed = compose_runs(words, multirun=multirun)
        return titles(composed.overrides, composed.configs)

    pairs = ["k_rope-s0", "k_rope-s1", "nope-s0", "nope-s1"]
    assert called("optim.lr=0.001", "pe=k_rope,nope", "seed=0,1") == pairs
    words = ["model=nano,10m", "pe=k_rope", "pe.base=100,10000", "++data.seed=1,2", "seed=3"]
    assert called(*words) == [
        f"{pe}-model={model}-data.seed={seed}-s3"
        for model in ("nano", "10m")
        for pe in ("k_rope-base100", "k_rope")
        for seed in (1, 2)
    ]
    assert called("pe=vo_rope", "seed=4", multirun=False) == ["vo_rope-s4"]


def test_a_launcher_and_its_options_are_for_the_command_line() -> None:
    words = ["hydra.launcher.partition=gpu", "+hydra.launcher.additional_parameters.mail-user=me"]
    composed = compose_runs(["launch=slurm", *words, "pe=glob(q_*)", "seed=1"])
    assert composed.tree.hydra.launcher.partition == "gpu"
    assert composed.tree.hydra.launcher.additional_parameters == {"mail-user": "me"}
    assert composed.overrides == [["launch=slurm", "pe=q_rope", "seed=1"]]


def test_cfg_job_prints_every_key(tmp_path: Path) -> None:
    done = command("--cfg", "job", "attn=mla", "pe=nope", "data.seed=${seed}", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    shown = yaml.safe_load(done.stdout)
    assert shown == run_config(["attn=mla", "pe=nope"]).to_dict() | {"data": shown["data"]}
    assert shown["data"]["seed"] == "${seed}"
    assert shown["train"]["precision"] == "auto"


def test_a_key_is_completed_on_tab(tmp_path: Path) -> None:
    for typed, completed in (("train.num", "train.num_steps="), ("attn=mla attn.kv", "kv_rank=")):
        line = f"python train.py {typed}"
        environment = {"COMP_LINE": line, "COMP_POINT": str(len(line)), "COMP_CWORD": "2"}
        done = command("-sc", "query=bash", cwd=tmp_path, **environment)
        assert completed in done.stdout, done.stderr


@pytest.mark.parametrize("name", ["split", "compose"])
def test_a_bug_of_ours_is_no_mistake_of_the_user(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """It keeps its type and its traceback; only errors of words and files become a sentence."""

    def broken(*_: object, **__: object) -> None:
        raise KeyError("ours")

    monkeypatch.setattr(f"rope_exp.compose.{name}", broken)
    with pytest.raises(KeyError):
        compose_runs(["seed=0,1"], multirun=True)


def test_several_values_are_refused_whatever_hydra_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """If Hydra accepted them one day, one of the runs would start without its word."""
    tree = compose_runs([]).tree
    monkeypatch.setattr("rope_exp.compose.compose", lambda *_, **__: tree)
    with refused("seed: several values make a sweep"):
        compose_runs(["+seed=0,1"])


def test_a_job_without_a_users_folder_walks_no_files(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The names of our own choices are compared with those of a user's folder alone."""
    walked = []
    rglob = Path.rglob

    def counted(folder: Path, pattern: str) -> Iterator[Path]:
        walked.append(folder)
        return rglob(folder, pattern)

    monkeypatch.setattr(Path, "rglob", counted)
    compose_runs(["seed=0,1,2"], multirun=True)
    assert CONFIGS not in walked
    compose_runs([], tmp_path)
    assert CONFIGS in walked
