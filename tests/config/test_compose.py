"""Configs that would call, read or write: the composed tree is refused before anything is run.

A file's offence is refused when the file is chosen, by the key that it sets: what nobody chooses
is not composed, and so does nothing.
"""

from pathlib import Path

import pytest
import yaml
from support.command import assert_refused, command, write
from support.configs import NINE
from support.refused import refused

from rope_exp.config.compose import CONFIGS, Jobs, compose_jobs, run_config

# -- code to call --------------------------------------------------------------------------------

CALLS = "hydra: {callbacks: {evil: {_target_: canary.sing}}}"


@pytest.fixture
def canary(tmp_path: Path) -> dict[str, str]:
    """An environment in which `canary.sing` can be imported; called, it leaves a file `sung`."""
    singing = "def sing(*args, **kwargs):\n    open('sung', 'w').close()\n"
    write(tmp_path / "library" / "canary.py", singing)
    return {"PYTHONPATH": str(tmp_path / "library")}


TARGETS = ("hydra.launcher._target_", "hydra.sweeper._target_", "+hydra.callbacks.x._target_")


@pytest.mark.parametrize("key", TARGETS)
def test_a_target_typed_is_never_called(tmp_path: Path, canary: dict[str, str], key: str) -> None:
    done = command("-m", "seed=0,1", f"{key}=canary.sing", cwd=tmp_path, **canary)
    assert_refused(done, key.lstrip("+"))
    assert [path.name for path in tmp_path.iterdir()] == ["library"]


@pytest.mark.parametrize("flags", [[], ["--cfg", "all"], ["--info", "all"], ["--hydra-help"]])
def test_a_target_in_a_file_is_never_called(
    tmp_path: Path, canary: dict[str, str], flags: list[str]
) -> None:
    """Not by a run, nor by what Hydra itself prints, for which it composes once more."""
    write(tmp_path / "more" / "experiment" / "evil.yaml", f"# @package _global_\n{CALLS}\n")
    words = ["--config-dir", "more", "+experiment=evil", "train.num_steps=1", *flags]
    assert_refused(command(*words, cwd=tmp_path, **canary), "hydra.callbacks.evil._target_")
    assert {path.name for path in tmp_path.iterdir()} == {"library", "more"}


# What an experiment may not say, and the key that its refusal names.
FILES = {
    "plain": (f"# @package _global_\n{CALLS}\n", "hydra.callbacks"),
    "escaped": (
        '# @package _global_\nhydra: {mode: RUN}\nx: {"\\x5ftarget_": canary.sing}\n',
        "x._target_",
    ),
    "escaped key of Hydra's": (
        '# @package _global_\n"\\x68ydra": {callbacks: {x: {y: 1}}}\n',
        "hydra.callbacks",
    ),
    "a logger's factory": (
        '# @package _global_\nhydra: {job_logging: {handlers: {x: {"()": canary.sing}}}}\n',
        "hydra.job_logging",
    ),
    "an anchor": ("# @package _global_\nx: &a {dir: /elsewhere}\nhydra: {run: *a}\n", "anchor"),
    "a circle": ("# @package _global_\nhydra: &a {launcher: *a}\n", "anchor"),
    "a bomb": ("a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n", "anchor"),
    "a merge": (
        '# @package _global_\n<<: {defaults: ["/hydra/job_logging/default"]}\n',
        "hydra.job_logging",
    ),
    "a package": ("# @package hydra.callbacks\nx: {y: 1}\n", "hydra.callbacks"),
    "a package in the defaults": (
        "# @package _global_\ndefaults:\n  - /pe@hydra.callbacks: vo_rope\n",
        "hydra.callbacks",
    ),
    "the search path": (
        "# @package _global_\nhydra: {searchpath: [file:///elsewhere]}\n",
        "hydra.searchpath",
    ),
    "a folder": ("# @package _global_\nhydra: {run: {dir: /elsewhere}}\n", "hydra.run.dir"),
    "a folder above": (
        "# @package _global_\nhydra: {sweep: {dir: ../elsewhere}}\n",
        "hydra.sweep.dir",
    ),
    "an environment": (
        "# @package _global_\nhydra: {job: {env_set: {X: secret}}}\n",
        "hydra.job.env_set.X",
    ),
    "a copied environment": (
        "# @package _global_\nhydra: {job: {env_copy: [HOME]}}\n",
        "hydra.job.env_",
    ),
    "a sweep over Hydra's keys": (
        "# @package _global_\nhydra:\n  mode: MULTIRUN\n"
        "  sweeper: {params: {+hydra.job.env_set.X: 1}}\n",
        "hydra.job.env_set.X",
    ),
    "a target below a launcher's": (
        "# @package _global_\nhydra: {launcher: {x: {_target_: canary.sing}}}\n",
        "hydra.launcher.x",
    ),
    "the environment": ("# @package _global_\ndata: {path: '${oc.env:HOME}'}\n", "data.path"),
    "the environment, nested": ("# @package _global_\ndata: {path: '${${x}:HOME}'}\n", "data.path"),
    "the environment in the defaults": (
        "# @package _global_\ndefaults:\n  - override /pe: ${oc.env:HOME}\n",
        "oc.env",
    ),
    "the environment for a launcher": (
        "# @package _global_\nhydra: {launcher: {comment: '${oc.env:HOME}'}}\n",
        "hydra.launcher.comment",
    ),
    "Hydra's own values": (
        "# @package _global_\ndata: {path: '${hydra.runtime.cwd}'}\n",
        "data.path",
    ),
    "a byte order mark": ("\ufeff# @package _global_\nseed: 1\n", "experiment"),
}


@pytest.mark.parametrize("what", FILES)
def test_a_file_that_would_call_or_read_is_refused(tmp_path: Path, what: str) -> None:
    """Chosen, it is refused by the key that it sets, however it spells it."""
    text, named = FILES[what]
    write(tmp_path / "experiment" / "evil.yaml", text)
    with refused(named):
        compose_jobs(["+experiment=evil"], tmp_path)


def test_a_secret_of_the_environment_is_not_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKEN", "hunter2")
    write(
        tmp_path / "experiment" / "evil.yaml",
        FILES["a copied environment"][0].replace("HOME", "TOKEN"),
    )
    with pytest.raises(ValueError, match=r"hydra\.job") as error:
        compose_jobs(["+experiment=evil"], tmp_path)
    assert "hunter2" not in str(error.value)


def test_a_file_elsewhere_is_checked_as_any_other(tmp_path: Path) -> None:
    """A defaults list may lead out of the folder; what it finds there is checked too."""
    write(tmp_path / "elsewhere.yaml", f"# @package _global_\n{CALLS}\n")
    write(tmp_path / "more" / "experiment" / "far.yaml", "defaults:\n  - ../../elsewhere\n")
    with refused():
        compose_jobs(["+experiment=far"], tmp_path / "more")


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_folder_of_hydras_own_groups_is_refused(tmp_path: Path) -> None:
    """Also one that shadows a group of Hydra's, which the search path would find first."""
    write(tmp_path / "hydra" / "launcher" / "mine.yaml", "_target_: canary.sing\n")
    write(tmp_path / "hydra" / "launcher" / "basic.yaml", "_target_: canary.sing\n")
    with refused("hydra.launcher._target_"):
        compose_jobs(["hydra/launcher=mine"], tmp_path)
    with refused("hydra.launcher._target_"):
        compose_jobs([], tmp_path)


def test_our_own_files_are_allowed_in_a_users_folder(tmp_path: Path) -> None:
    for path in CONFIGS.rglob("*.yaml"):
        write(tmp_path / "more" / path.relative_to(CONFIGS), path.read_text())
    mine = (CONFIGS / "pe" / "vo_rope.yaml").read_text().replace("VO-", "My-")
    write(tmp_path / "more" / "pe" / "mine.yaml", mine)

    done = command("--config-dir", "more", "pe=mine", "--cfg", "job", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "My-RoPE" in done.stdout


@pytest.mark.parametrize("choice", ["pe/qk_rope.yaml", "experiment/nine.yaml"])
def test_another_choice_of_a_name_of_ours_is_refused(tmp_path: Path, choice: str) -> None:
    """One of the two would be left out without a word."""
    write(tmp_path / choice, (CONFIGS / choice).read_text() + "# mine\n")
    with refused("--config-dir", choice, "give it another"):
        compose_jobs([], tmp_path)


@pytest.mark.parametrize("linked", ["pe", "pe/qk_rope.yaml", ""])
def test_a_choice_in_a_linked_folder_is_refused(tmp_path: Path, linked: str) -> None:
    """A group, a file or the whole folder may be a link; what is linked is looked into."""
    write(tmp_path / "shared" / "pe" / "qk_rope.yaml", "name: QK-RoPE\nrotate: [v]\n")
    link = tmp_path / "mine" / linked
    link.parent.mkdir(exist_ok=True, parents=True)
    link.symlink_to(tmp_path / "shared" / linked)
    with refused("--config-dir", "pe/qk_rope.yaml", "give it another"):
        compose_jobs([], tmp_path / "mine")


def test_a_link_that_leads_nowhere_or_back_is_met(tmp_path: Path) -> None:
    """A choice of ours would be taken in the place of one that is gone."""
    write(tmp_path / "pe" / "mine.yaml", "name: Mine\nrotate: [v]\n")
    for name in ("back", "again"):
        (tmp_path / "pe" / name).symlink_to(tmp_path)
    assert compose_jobs(["pe=mine"], tmp_path).configs[0].pe.rotate == ("v",)
    (tmp_path / "pe" / "qk_rope.yaml").symlink_to("nowhere")
    with refused("pe/qk_rope.yaml", "give it another"):
        compose_jobs([], tmp_path)


def test_an_anchor_in_a_linked_folder_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "shared" / "mine.yaml", "name: &a Mine\nrotate: [*a]\n")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "pe").symlink_to(tmp_path / "shared")
    with refused("mine/pe/mine.yaml", "repeats an anchor"):
        compose_jobs([], tmp_path / "mine")


@pytest.mark.parametrize("script", ["scripts/plan.py", "scripts/prepare_data.py"])
def test_every_command_that_composes_takes_a_folder(tmp_path: Path, script: str) -> None:
    write(
        tmp_path / "more" / "data" / "mine.yaml",
        "name: mine\nkind: files\npath: nowhere\ntext_column: text\n",
    )
    done = command(
        "--config-dir", "more", "data=mine", "train.num_steps=1", script=script, cwd=tmp_path
    )
    if script == "scripts/plan.py":
        assert "on mine" in done.stdout, done.stderr
    else:
        assert_refused(done, "data.path=nowhere")


BROKEN = {
    "a list": ("- name: VO-RoPE\n", "must be a group of keys"),
    "an item twice": ("name: A\nname: B\n", "duplicate key"),
    "a circle": ("name: A\nrotate: &a [*a]\n", "anchor"),
    "a number without end": ("name: A\nbase: " + "9" * 5000, "4300 digits"),
    "not UTF-8": ("\udcff", "utf-8"),
    "a tag": ("name: !!python/object/apply:os.system [ls]\n", "configs: "),
    "a list that does not end": ("name: Bad\nrotate: [k, v\n", "configs: a file there is no YAML"),
    "another mapping": ("name: {a: b}\nrotate: []\n", "pe.name="),
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_file_is_one_sentence(tmp_path: Path, what: str) -> None:
    text, named = BROKEN[what]
    write(tmp_path / "pe" / "mine.yaml", text)
    with refused(named):
        compose_jobs(["pe=mine"], tmp_path)


# -- sweeps --------------------------------------------------------------------------------------


def names(jobs: Jobs) -> list[str]:
    return [config.name for config in jobs.configs]


def test_an_experiment_is_a_sweep_in_its_own_order() -> None:
    assert names(compose_jobs(["+experiment=nine"])) == [f"{pe}-s0" for pe in NINE]
    assert names(compose_jobs(["+experiment=nine", "pe=k_rope,nope"])) == ["k_rope-s0", "nope-s0"]
    seeds = names(compose_jobs(["+experiment=seeds"]))
    assert seeds == [f"{pe}-s{seed}" for seed in range(5) for pe in NINE]
    assert len(set(names(compose_jobs(["+experiment=subsets"])))) == 16


def test_a_sweep_is_every_value_with_every_other() -> None:
    """The first word turns slowest, as in Hydra's own sweeper."""
    jobs = compose_jobs(["seed=1,0", "pe=glob(q*)"], multirun=True)
    assert names(jobs) == [
        f"{pe}-s{seed}" for seed in (1, 0) for pe in ("q_rope", "qk_rope", "qkv_rope", "qkvo_rope")
    ]
    assert names(compose_jobs(["seed=3"], multirun=True)) == ["qk_rope-s3"]


def test_a_run_is_called_by_what_its_sweep_changes() -> None:
    """Not by what all its runs share, and not twice by its variant or seed."""
    jobs = compose_jobs(["optim.lr=0.001", "pe=k_rope,nope", "seed=0,1"], multirun=True)
    assert jobs.titles == names(jobs)
    words = ["model=nano,10m", "pe=k_rope", "pe.base=100,10000", "++data.seed=1,2", "seed=3"]
    assert compose_jobs(words, multirun=True).titles == [
        f"{pe}-model={model}-data.seed={seed}-s3"
        for model in ("nano", "10m")
        for pe in ("k_rope-base100", "k_rope")
        for seed in (1, 2)
    ]
    assert compose_jobs(["pe=vo_rope", "seed=4"]).titles == ["vo_rope-s4"]


def test_a_sweep_of_a_key_that_no_file_mentions(tmp_path: Path) -> None:
    write(
        tmp_path / "experiment" / "x.yaml",
        "# @package _global_\nhydra: {mode: MULTIRUN, sweeper: {params: {data.seed: '1,2'}}}\n",
    )
    jobs = compose_jobs(["+experiment=x"], tmp_path)
    assert [config.data.seed for config in jobs.configs] == [1, 2]


def test_a_launcher_and_its_options_are_for_the_command_line() -> None:
    """The launcher gets Hydra's tree, and the overrides of each job as Hydra needs them."""
    words = ["hydra.launcher.partition=gpu", "hydra.launcher.additional_parameters.mail-user=me"]
    jobs = compose_jobs(["launch=slurm", *words, "hydra.verbose=true", "pe=glob(q_*)", "seed=1"])
    assert jobs.have_launcher
    assert jobs.tree.hydra.launcher.partition == "gpu"
    assert jobs.tree.hydra.launcher.additional_parameters == {"mail-user": "me"}
    assert jobs.overrides == [["launch=slurm", "pe=q_rope", "++seed=1"]]
    assert not compose_jobs(["-m", "seed=0,1"][1:], multirun=True).have_launcher


# -- keys ----------------------------------------------------------------------------------------


def test_a_key_that_no_file_mentions_can_be_overridden() -> None:
    """The defaults stand in the dataclasses."""
    assert run_config(["data.seed=4"]).data.seed == 4
    assert run_config(["run={group: a}"]).run.group == "a"


def test_cfg_job_prints_every_key(tmp_path: Path) -> None:
    done = command("--cfg", "job", "data.seed=${seed}", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    shown = yaml.safe_load(done.stdout)
    assert shown == run_config([]).to_dict() | {"data": shown["data"]}
    assert shown["data"]["seed"] == "${seed}"
    assert shown["train"]["precision"] == "auto"
