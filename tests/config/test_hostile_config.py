"""Configs that mean harm, or that nobody means: refused in one sentence before Hydra acts, or stored harmlessly."""

import importlib.util
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from support.configs import REPOSITORY

from rope_exp.config.compose import CONFIGS, MAX_RUNS, check_files, read_command, run_config
from rope_exp.config.run import RunConfig
from rope_exp.launch.admit import acquire, admit
from rope_exp.model.laws import certificate
from rope_exp.run.folder import read_config
from rope_exp.system import machine
from rope_exp.system.errors import ConfigError


def train(*words: str, cwd: Path, **environment: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, str(REPOSITORY / "train.py"), *words],
        cwd=cwd,
        env=os.environ
        | {"CUDA_VISIBLE_DEVICES": "", "ROPE_EXP_CACHE": str(cwd / "cache")}
        | environment,
        capture_output=True,
        text=True,
        timeout=60,
    )


def assert_refused(done: "subprocess.CompletedProcess[str]", *named: str) -> None:
    assert done.returncode == 2, (done.returncode, done.stdout, done.stderr)
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""
    for name in named:
        assert name in done.stderr


def refusal(action: Callable[[], Any]) -> str:
    """The one sentence that `action` is refused with."""
    with pytest.raises(ConfigError) as error:
        action()
    sentence = str(error.value)
    assert sentence.splitlines() == [sentence]
    assert sentence.isprintable()
    return sentence


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode())


# -- code to call -----------------------------------------------------------------------------------------------------

CALLS = "hydra: {callbacks: {evil: {_target_: canary.sing}}}"


@pytest.fixture
def canary(tmp_path: Path) -> dict[str, str]:
    """An environment in which `canary.sing` can be imported; called, it leaves a file `sung` where it runs."""
    write(
        tmp_path / "library" / "canary.py",
        "def sing(*args, **kwargs):\n    open('sung', 'w').close()\n",
    )
    return {"PYTHONPATH": str(tmp_path / "library")}


@pytest.mark.parametrize(
    "key", ["hydra.launcher._target_", "hydra.sweeper._target_", "+hydra.callbacks.x._target_"]
)
def test_a_target_on_the_command_line_is_never_called(
    tmp_path: Path, canary: dict[str, str], key: str
) -> None:
    assert_refused(
        train("-m", "seed=0,1", f"{key}=canary.sing", cwd=tmp_path, **canary), key.lstrip("+")
    )
    assert [path.name for path in tmp_path.iterdir()] == ["library"]


def test_a_target_in_an_experiment_is_never_called(tmp_path: Path, canary: dict[str, str]) -> None:
    write(tmp_path / "more" / "experiment" / "evil.yaml", f"# @package _global_\n{CALLS}\n")
    done = train(
        "--config-dir", "more", "+experiment=evil", "train.num_steps=1", cwd=tmp_path, **canary
    )
    assert_refused(done, "experiment/evil.yaml", "_target_")
    assert {path.name for path in tmp_path.iterdir()} == {"library", "more"}


FILES = {
    "plain": f"# @package _global_\n{CALLS}\n",
    "escaped": '# @package _global_\nhydra: {mode: RUN}\nx: {"\\x5ftarget_": canary.sing}\n',
    "escaped key of Hydra's": '# @package _global_\n"\\x68ydra": {callbacks: {x: {y: 1}}}\n',
    "a logger's factory": '# @package _global_\nhydra: {job_logging: {handlers: {x: {"()": canary.sing}}}}\n',
    "an anchor": "# @package _global_\nx: &a {dir: /elsewhere}\nhydra: {run: *a}\n",
    "a circle": "# @package _global_\nhydra: &a {launcher: *a}\n",
    "a merge": '# @package _global_\n<<: {defaults: ["/hydra/job_logging/default"]}\n',
    "a package": "# @package hydra.callbacks\nx: {y: 1}\n",
    "a package in the defaults": "defaults:\n  - /pe@hydra.callbacks: vo_rope\n",
    "Hydra's groups in the defaults": "# @package _global_\ndefaults:\n  - override /hydra/job_logging: default\n",
    "a file outside": "# @package _global_\ndefaults:\n  - ../../elsewhere\n",
    "the search path": "# @package _global_\nhydra: {searchpath: [file:///elsewhere]}\n",
    "a folder": "# @package _global_\nhydra: {run: {dir: /elsewhere}}\n",
    "a folder above": "# @package _global_\nhydra: {sweep: {dir: ../elsewhere}}\n",
    "a sweep over Hydra's keys": "# @package _global_\nhydra: {sweeper: {params: {+hydra.job.env_set.X: 1}}}\n",
    "the environment": "data: {path: '${oc.env:HOME}'}\n",
    "the environment, nested": "data: {path: '${${x}:HOME}'}\n",
    "a resolver of ours": "data: {path: '${scratch:}'}\n",
    "Hydra's own values": "data: {path: '${hydra.runtime.cwd}'}\n",
    "a byte order mark": "\ufeff# @package _global_\nseed: 1\n",
}


@pytest.mark.parametrize("what", FILES)
def test_a_file_that_would_call_read_or_write_elsewhere_is_refused_by_name(
    tmp_path: Path, what: str
) -> None:
    write(tmp_path / "experiment" / "evil.yaml", FILES[what])
    assert str(tmp_path / "experiment" / "evil.yaml") in refusal(lambda: check_files([tmp_path]))


def test_a_folder_of_hydras_own_groups_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "hydra" / "launcher" / "mine.yaml", "x: 1\n")
    assert "hydra/launcher/mine.yaml" in refusal(
        lambda: read_command(["--config-dir", str(tmp_path), "pe=nope"])
    )


def test_what_our_own_configs_say_of_hydra_is_allowed_also_in_a_folder_of_the_users(
    tmp_path: Path,
) -> None:
    for path in CONFIGS.rglob("*.yaml"):
        write(tmp_path / "more" / path.relative_to(CONFIGS), path.read_text())
    write(
        tmp_path / "more" / "pe" / "mine.yaml",
        (CONFIGS / "pe" / "vo_rope.yaml").read_text().replace("VO-", "My-"),
    )
    check_files([CONFIGS, tmp_path / "more"])
    done = train("--config-dir", "more", "pe=mine", "--cfg", "job", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "My-RoPE" in done.stdout


HYDRAS = [
    "hydra.run.dir=/elsewhere", "hydra.sweep.dir=elsewhere", "hydra.output_subdir=x", "+hydra.job.env_set.X=1",
    "hydra.searchpath=[file:///elsewhere]", "hydra/job_logging=default", "hydra.mode=MULTIRUN", "hydra={mode:RUN}",
    "+pe@hydra.callbacks=vo_rope", "hydra.launcher={_target_:os.system}", "~hydra.run.dir", "pe={_target_:os.system}",
    "+experiment=../../elsewhere", "pe=../pe/vo_rope", "+pe@run=../model/nano",
]  # fmt: skip


@pytest.mark.parametrize("override", HYDRAS)
def test_hydras_own_settings_and_files_elsewhere_are_not_for_the_command_line(
    override: str,
) -> None:
    assert override.lstrip("+~").partition("=")[0] in refusal(lambda: read_command([override]))


def test_a_launcher_and_its_options_are_for_the_command_line() -> None:
    words = [
        "-m",
        "launch=slurm",
        "hydra.launcher.partition=gpu",
        "hydra.verbose=true",
        "pe=glob(q*)",
    ]
    assert read_command(words).overrides == words[1:]
    assert read_command(["-m", "hydra/launcher=submitit_local", "seed=0,1"]).multirun


# -- what may be read -------------------------------------------------------------------------------------------------

RESOLVERS = [
    "${oc.env:HOME}", "${oc.env:HOME,x}", "a${oc.decode:1}b", "${oc.create:[1]}", "${scratch:}", "${hydra:job.id}",
    "${${pe.name}:HOME}", "${ oc.env:HOME }", "${hydra.runtime.cwd}",
]  # fmt: skip


@pytest.mark.parametrize("resolver", RESOLVERS)
def test_no_value_is_read_from_the_environment(resolver: str) -> None:
    assert refusal(lambda: run_config([f"data.cache_dir='{resolver}'"])).startswith(
        "data.cache_dir="
    )
    assert "read the environment" in refusal(lambda: run_config([f"data.cache_dir={resolver}"]))


def test_a_reference_to_another_key_is_its_value() -> None:
    assert run_config(["seed=7", "data.seed=${seed}"]).data.seed == 7
    assert run_config(["train.eval_every=${train.num_steps}"]).train.eval_every == 500


@pytest.mark.parametrize(
    "override", ["tracker.api_key=hunter2", "+tracker.api_key=hunter2", "tracker.api_key=~hunter2"]
)
def test_the_value_of_an_unknown_key_is_not_shown(override: str) -> None:
    sentence = refusal(lambda: run_config([override]))
    assert sentence.startswith("tracker.api_key: ")
    assert "hunter2" not in sentence


# -- text and numbers -------------------------------------------------------------------------------------------------

PATHS = ["run.dir", "data.path", "data.cache_dir", "tokenizer.path"]
NO_PATHS = [
    "a\0b",
    "a\nb",
    "a\x1b[2Jb",
    "a\u2028b",
    "a\udcffb",
    "a" * 256,
    "😀" * 64,
    "a/" * 2000,
    "~nosuchuser/x",
    "",
]


@pytest.mark.parametrize("key", PATHS)
@pytest.mark.parametrize("text", NO_PATHS, ids=[ascii(text)[:12] for text in NO_PATHS])
def test_a_path_that_no_system_has_is_refused(key: str, text: str) -> None:
    values = run_config([]).to_dict()
    group, name = key.split(".")
    values[group][name] = text
    assert refusal(lambda: RunConfig.from_dict(values)).startswith(f"{key}=")


@pytest.mark.parametrize(
    "key", ["pe.name", "run.group", "tracker.project", "tracker.entity", "model.name"]
)
@pytest.mark.parametrize(
    "text", ["a" * 300, "\U0001f600", "a\nb", "a\0b", "../a", "a/b", "", "a\u202eb"]
)
def test_a_name_is_short_and_plain(key: str, text: str) -> None:
    values = run_config([]).to_dict()
    group, name = key.split(".")
    values[group][name] = text
    assert refusal(lambda: RunConfig.from_dict(values)).startswith(f"{key}=")


@pytest.mark.parametrize("name", ["😀", "Ω ß 日本", "a'b\"c\\d: #e", "n" * 255])
def test_an_odd_folder_is_stored_as_it_is(
    tiny: Callable[..., RunConfig], tmp_path: Path, name: str
) -> None:
    values = tiny().to_dict()
    values["run"]["dir"] = str(tmp_path / name)
    config = machine.settle(RunConfig.from_dict(values))
    [job] = admit([config])
    assert acquire(job)
    job.unlock()
    assert os.listdir(tmp_path) == [name]
    assert read_config(tmp_path / name).to_dict()["run"]["dir"] == str(tmp_path / name)


def test_a_home_is_expanded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert run_config(["run.dir='~/x'"]).folder == tmp_path / "x"


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
    ("~optim", "optim=null: "),
    ("~optim.lr", "optim.lr=null: "),
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
    ("pe=glob(zz*)", "pe: the sweep is empty: nothing matches among k_rope, nope"),
    ("seed=range(3,3)", "seed: the sweep is empty"),
    (f"seed=range(0,{10**12})", f"seed: makes a sweep of more than {MAX_RUNS:,} runs"),
    ("optim.lr=range(0.0,1.0,1e-12)", "optim.lr: makes a sweep"),
]


@pytest.mark.parametrize(
    ("override", "sentence"), MISTAKES, ids=[case[0][:30] for case in MISTAKES]
)
def test_a_value_that_nobody_means_is_one_sentence_with_its_key(
    override: str, sentence: str
) -> None:
    assert refusal(lambda: run_config([override])).startswith(sentence)


BROKEN = {
    "a list": ("- name: VO-RoPE\n", "must be a group of keys"),
    "an item twice": ("name: A\nname: B\n", "duplicate key"),
    "a circle": ("name: A\nrotate: &a [*a]\n", "configs: "),
    "a number without end": ("name: A\nbase: " + "9" * 5000, "4300 digits"),
    "not UTF-8": ("\udcff", "utf-8"),
    "a tag": ("name: !!python/object/apply:os.system [ls]\n", "configs: "),
    "another mapping": (
        "name: {a: b}\nrotate: []\nbase: 2\nfraction: 1\ntrainable: false\nstart: 0\n",
        "pe.name=",
    ),
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_file_is_one_sentence(tmp_path: Path, what: str) -> None:
    text, named = BROKEN[what]
    path = tmp_path / "more" / "pe" / "mine.yaml"
    path.parent.mkdir(parents=True)
    path.write_bytes(text.encode(errors="surrogateescape"))
    assert_refused(train("--config-dir", "more", "pe=mine", cwd=tmp_path), named)
    assert [path.name for path in tmp_path.iterdir()] == ["more"]


# -- sizes ------------------------------------------------------------------------------------------------------------

ABSURD = [
    (("train.global_batch_size=1000000000",), "train.global_batch_size=1000000000: "),
    (("train.global_batch_size=1000000000", "train.micro_batch_size=1"), "train.global_batch_size=1000000000: "),
    (("train.seq_len=16000000",), "train.global_batch_size=16: "),
    (("model.hidden_size=1099511627776",), "model=nano: "),
    (("model.intermediate_size=1099511627776",), "model=nano: "),
    (("tokenizer.vocab_size=16777216", "model.hidden_size=16384"), "model=nano: "),
    (("launch.num_processes=1000000", "train.global_batch_size=1000000", "train.seq_len=1"),
     "launch.num_processes=1000000: "),
    (("launch.num_processes=9223372036854775807",), "train.global_batch_size=16: "),
]  # fmt: skip


@pytest.mark.parametrize(("overrides", "sentence"), ABSURD, ids=[case[0][0] for case in ABSURD])
def test_what_fits_no_machine_is_refused_at_once_with_both_numbers(
    overrides: tuple[str, ...], sentence: str
) -> None:
    started = time.monotonic()
    refused = refusal(
        lambda: machine.check_memory(machine.settle(run_config(["launch.device=cpu", *overrides])))
    )
    assert refused.startswith(sentence)
    assert "GiB, and this machine has" in refused or "multiple of" in refused
    assert time.monotonic() - started < 2


def test_a_run_that_fits_no_machine_prepares_nothing(tmp_path: Path) -> None:
    done = train("model.hidden_size=1048576", cwd=tmp_path)
    assert_refused(done, "model=nano", "GiB, and this machine has")
    assert list(tmp_path.iterdir()) == []


def test_our_own_sizes_are_estimated_below_a_card_of_80_gib(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table = {"index": "0", "uuid": "0", "compute_cap": "9.0", "memory.total": "81920 MiB"}
    monkeypatch.setattr(
        machine, "_nvidia_smi", lambda *columns: [tuple(table[name] for name in columns)]
    )
    monkeypatch.setattr(machine, "memory_size", lambda: 2**40)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    for path in (CONFIGS / "model").glob("*.yaml"):
        machine.check_memory(machine.settle(run_config([f"model={path.stem}"])))


EXTREMES = [
    ("pe.start=16000000",), ("pe.start=16000000", "pe.base=1.0000001"), ("pe.start=10000000", "pe.base=1e30"),
    ("pe.base=1.0000001",), ("pe.fraction=0.04",), ("pe.start=16000000", "model.hidden_size=1024"),
]  # fmt: skip


@pytest.mark.parametrize("extremes", EXTREMES, ids=" ".join)
@pytest.mark.parametrize("rotate", ["[]", "[q]", "[v]", "[o]", "[q,k]", "[v,o]", "[q,k,v,o]"])
def test_a_rotation_at_the_end_of_its_range_is_certified_for_what_it_is(
    extremes: tuple[str, ...], rotate: str
) -> None:
    config = run_config([f"pe.rotate={rotate}", *extremes])
    checked = certificate(config.model, config.pe)
    assert checked["measured"] == checked["expected"]


# -- usage ------------------------------------------------------------------------------------------------------------

USAGE = [
    (["--pe", "x"], "unrecognized arguments: --pe"),
    (["-m", "--cfg", "job"], "--multirun and --cfg exclude each other"),
    (["--resolve"], "--resolve needs --cfg"),
    (["--cfg", "nosuch"], "invalid choice: 'nosuch'"),
    (["--config-name", "nosuch"], "--config-name: "),
    (["--config-path", "/elsewhere"], "--config-path: "),
    (["--config-dir", "nosuch"], "--config-dir=nosuch: "),
    (["--experimental-rerun", "x.pickle"], "--experimental-rerun: "),
]


@pytest.mark.parametrize(("words", "named"), USAGE, ids=[" ".join(case[0]) for case in USAGE])
def test_a_mistaken_command_line_is_one_sentence(words: list[str], named: str) -> None:
    assert named in refusal(lambda: read_command(words))


def test_mistaken_usage_and_an_empty_sweep_exit_with_2(tmp_path: Path) -> None:
    assert_refused(train("--pe", "x", cwd=tmp_path), "--pe")
    assert_refused(train("-m", "pe=glob(zz*)", cwd=tmp_path), "pe: the sweep is empty")
    assert list(tmp_path.iterdir()) == []


def test_a_flag_may_stand_between_overrides(tmp_path: Path) -> None:
    done = train("pe=vo_rope", "--cfg", "job", "seed=5", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "VO-RoPE" in done.stdout
    assert "seed: 5" in done.stdout


def test_help_is_the_projects_own(tmp_path: Path) -> None:
    done = train("--help", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for words in ("python train.py pe=vo_rope", "k_rope, nope", "Exit codes: 0 done"):
        assert words in done.stdout
    for script in ("plan.py", "prepare_data.py", "report.py"):
        command = [sys.executable, str(REPOSITORY / "scripts" / script), "--help"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert f"scripts/{script}" in done.stdout or f"usage: {script}" in done.stdout
    assert list(tmp_path.iterdir()) == []


# -- the environment --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def script() -> ModuleType:
    """train.py, imported."""
    spec = importlib.util.spec_from_file_location("train_script", REPOSITORY / "train.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


RANKS = [
    ({"RANK": "x"}, "RANK=x: "),
    ({"RANK": "-1"}, "RANK=-1: "),
    ({"RANK": ""}, "RANK=: "),
    ({"RANK": "0", "WORLD_SIZE": "0"}, "WORLD_SIZE=0: "),
    ({"RANK": "0", "WORLD_SIZE": "9" * 5000}, "WORLD_SIZE=9"),
    ({"RANK": "2", "WORLD_SIZE": "2"}, "RANK=2: must be below WORLD_SIZE=2"),
    ({"RANK": "1"}, "RANK=1: must be below WORLD_SIZE=1"),
    ({"RANK": "0", "LOCAL_RANK": "y"}, "LOCAL_RANK=y: "),
    ({"WORLD_SIZE": "2"}, "RANK: a launcher sets it beside WORLD_SIZE"),
    ({"RANK": "0", "WORLD_SIZE": "2"}, "MASTER_ADDR: "),
    ({"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost"}, "MASTER_PORT: "),
]


@pytest.mark.parametrize(
    ("environment", "sentence"), RANKS, ids=[str(case[0])[:40] for case in RANKS]
)
def test_a_rank_that_no_launcher_sets_is_refused(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], sentence: str
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert refusal(script.check_ranks).startswith(sentence)


def test_a_garbled_rank_exits_with_2(tmp_path: Path) -> None:
    assert_refused(train("seed=1", cwd=tmp_path, RANK="x"), "RANK=x")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "words", [["train.num_steps=100000"], ["--cfg", "job"], ["-m", "seed=0,1"]], ids=" ".join
)
def test_a_signal_in_the_first_second_ends_with_75_or_not_at_all(
    tmp_path: Path, words: list[str]
) -> None:
    started = time.monotonic()
    subprocess.run([sys.executable, "-c", "import signal"], check=True)
    bare = (
        time.monotonic() - started
    )  # until then it is Python that a signal meets, and not our first line
    moments = random.Random(" ".join(words))
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1) * 3:
        process = subprocess.Popen(
            [sys.executable, str(REPOSITORY / "train.py"), *words],
            cwd=tmp_path,
            env=os.environ
            | {"CUDA_VISIBLE_DEVICES": "", "TMPDIR": str(tmp_path), "ROPE_EXP_CACHE": "cache"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        moment = moments.uniform(0.03, 0.6)
        time.sleep(moment)
        process.send_signal(number)
        _, stderr = process.communicate(timeout=30)
        if moment > 3 * bare:
            assert process.returncode in (0, 75), (moment, number, process.returncode, stderr)
            assert "Traceback" not in stderr
            assert "Exception ignored" not in stderr
            assert process.returncode == 0 or stderr.endswith(
                "stopped before any run was started\n"
            ), stderr
    assert not list(tmp_path.glob("rope_exp-*"))
