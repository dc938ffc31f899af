"""Tests of the commands: their output, their exit codes, and signals while they start."""

import os
import random
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from support.command import assert_refused, command, write
from support.configs import REPOSITORY

import rope_exp
from rope_exp import cli

# -- help and usage ------------------------------------------------------------------------------


def test_help_is_the_projects_own(tmp_path: Path) -> None:
    """Help lists the choices of each group, also those in --config-dir."""
    write(tmp_path / "more" / "pe" / "mine.yaml", "# My own. It rotates.\nname: Mine\n")
    done = command("--help", "--config-dir", "more", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for words in ("rope-exp train pe=vo_rope", "rope-exp campaign NAME", "Exit codes: 0 done"):
        assert words in done.stdout
    assert re.search(r"^pe: .*\bmine, .*\bvo_rope$", done.stdout, re.MULTILINE)


@pytest.mark.parametrize("script", ["plan", "prepare", "scripts/report.py"])
def test_every_command_helps_and_refuses_what_it_cannot_read(tmp_path: Path, script: str) -> None:
    done = command("--help", script=script, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert f"usage: rope-exp {Path(script).stem}" in done.stdout
    assert_refused(command("--nosuch", script=script, cwd=tmp_path), "usage: ", "--help`")
    assert list(tmp_path.iterdir()) == []


def test_one_door_has_every_command(tmp_path: Path) -> None:
    """The test runs `python -m rope_exp ...`, which is the same as `rope-exp ...`."""

    def run(*words: str) -> "subprocess.CompletedProcess[str]":
        whole = [sys.executable, "-m", "rope_exp", *words]
        environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
        return subprocess.run(whole, cwd=tmp_path, env=environment, capture_output=True, text=True)

    assert "rope-exp train pe=vo_rope" in run().stdout
    assert run("--version").stdout == f"{rope_exp.__version__}\n"
    assert "seed: 5" in run("train", "--cfg", "job", "seed=5").stdout
    assert_refused(run("trian"), "command=trian: must be one of train, campaign, sweep, report")
    assert_refused(run("report"), "results/runs")
    assert "usage: rope-exp campaign" in run("campaign", "--help").stdout
    assert_refused(run("campaign"), "usage: the following arguments are required: NAME; see")
    assert_refused(run("campaign", "nosuch"), "campaign=nosuch: there is no such campaign")


def test_mistakes_exit_with_2(tmp_path: Path) -> None:
    usage = command("--pe", "x", cwd=tmp_path)
    assert (usage.returncode, "unrecognized arguments: --pe" in usage.stderr) == (2, True)
    assert_refused(
        command("-m", "--cfg", "job", cwd=tmp_path), "Only one of --run, --multirun, --cfg"
    )
    assert_refused(command("--resolve", cwd=tmp_path), "--resolve flag can only be used")
    assert_refused(
        command("--config-dir", "nosuch", cwd=tmp_path),
        "--config-dir=",
        "nosuch",
        "there is no such folder",
    )
    for word in ("+campaign=noise", "campaign=nosuch"):
        refused = command(word, cwd=tmp_path)
        assert_refused(refused, "campaign: is no key of a run; `rope-exp campaign NAME`")
    assert_refused(command("-m", "pe=glob(zz*)", cwd=tmp_path), "the sweep is empty")
    assert list(tmp_path.iterdir()) == []
    no_slurm = command("launch=slurm", cwd=tmp_path, PATH=str(tmp_path))
    assert_refused(no_slurm, "launch=slurm: there is no SLURM here (no srun); launch=slurm_local")
    write(tmp_path / "my" / "pe" / "kv_half.yaml", "rotate: [k, v]\n")
    assert_refused(
        command("pe=kv_half", cwd=tmp_path),
        "pe=kv_half: there is no such choice without --config-dir my, which holds my/pe/kv_half",
    )


def test_a_deleted_working_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    script = 'rmdir "$PWD" && exec "$0" "$@"'
    for words in (["train.py"], ["scripts/report.py"]):
        done = subprocess.run(
            ["sh", "-c", script, sys.executable, *(str(REPOSITORY / word) for word in words)],
            cwd=tmp_path / "gone",
            capture_output=True,
            text=True,
        )
        assert_refused(done, "working folder: was deleted; change to another one")
        (tmp_path / "gone").mkdir()


def test_a_word_that_the_locale_cannot_read_is_named(tmp_path: Path) -> None:
    done = command("run.dir='ü'", cwd=tmp_path, LC_ALL="C", PYTHONCOERCECLOCALE="0", PYTHONUTF8="0")
    assert_refused(done, "word=", "is no text in this locale; set PYTHONUTF8=1")
    assert list(tmp_path.iterdir()) == []


def test_a_notebook_completes_what_is_public() -> None:
    assert dir(rope_exp) == sorted(rope_exp.__all__)


def test_a_flag_may_stand_between_overrides(tmp_path: Path) -> None:
    done = command("pe=vo_rope", "--cfg", "job", "seed=5", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "VO-RoPE" in done.stdout
    assert "seed: 5" in done.stdout


def test_every_flag_that_shows_a_config_shows_the_same(tmp_path: Path) -> None:
    words = ("pe=vo_rope", "optim=muon", "model=1b")
    job = yaml.safe_load(command("--cfg", "job", *words, cwd=tmp_path).stdout)
    everything = yaml.safe_load(command("--cfg", "all", *words, cwd=tmp_path).stdout)
    told = command("--info", "config", *words, cwd=tmp_path).stdout
    assert everything.pop("hydra")
    assert everything == job
    assert yaml.safe_load(told.partition("Config\n******\n")[2]) == job


@pytest.mark.parametrize("flags", [["--info", "all"], ["--cfg", "job"], ["--help"]], ids=" ".join)
def test_a_reader_that_leaves_is_no_failure(tmp_path: Path, flags: list[str]) -> None:
    """A reader that closes the pipe, like `head -1`, causes exit code 0 and an empty stderr."""
    process = subprocess.Popen(
        [sys.executable, str(REPOSITORY / "train.py"), *flags],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    process.stdout.close()
    process.stdout = None
    _, stderr = process.communicate(timeout=30)
    assert (process.returncode, stderr) == (0, b"")


@pytest.mark.torture
@pytest.mark.parametrize("closed", ["<&- >&- 2>&-", ">&-", "2>&-"])
def test_a_closed_stream_is_no_failure(
    tiny_overrides: list[str], tmp_path: Path, closed: str
) -> None:
    """No file gets the stream's number: the lock stays empty, and a second start succeeds too."""
    train = shlex.join([sys.executable, str(REPOSITORY / "train.py"), *tiny_overrides])
    for _ in range(2):
        done = subprocess.run(["sh", "-c", f"{train} {closed}"], cwd=tmp_path, capture_output=True)
        assert done.returncode == 0, done
        assert b"Traceback" not in done.stderr
    assert (tmp_path / "run" / "result.json").exists()
    assert (tmp_path / "run" / ".lock").read_bytes() == b""


@pytest.mark.parametrize(
    "error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory")]
)
def test_a_lack_of_memory_is_one_sentence(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Lack of memory gives exit code 1 and one line on stderr, whichever command meets it."""

    def fail(*_: object) -> int:
        raise error

    monkeypatch.setattr(cli, "_run", fail)
    assert cli.main("plan") == 1
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("error: out of memory (")
    assert line.endswith("; training takes less with a smaller train.micro_batch_size")


def test_a_bug_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> int:
        raise RuntimeError("a bug")

    monkeypatch.setattr(cli, "_run", fail)
    with pytest.raises(RuntimeError, match="a bug"):
        cli.main("plan")


# -- signals -------------------------------------------------------------------------------------


def bare_start() -> float:
    """Return the seconds that bare Python takes to start: before that, none of our code runs."""
    started = time.monotonic()
    subprocess.run([sys.executable, "-c", "import signal"], check=True)
    return time.monotonic() - started


WORDS = [["train.num_steps=100000"], ["--cfg", "job"], ["-m", "seed=0,1"]]


@pytest.mark.parametrize("words", WORDS, ids=" ".join)
def test_a_signal_in_the_first_second(tmp_path: Path, words: list[str]) -> None:
    """The signal gives exit code 75 and a sentence, or comes too late; never a traceback."""
    bare = bare_start()
    moments = random.Random(" ".join(words))
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1) * 3:
        process = subprocess.Popen(
            [sys.executable, str(REPOSITORY / "train.py"), *words],
            cwd=tmp_path,
            env=os.environ | {"CUDA_VISIBLE_DEVICES": "", "ROPE_EXP_CACHE": "cache"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        moment = moments.uniform(0.03, 0.6)
        time.sleep(moment)
        process.send_signal(number)
        _, stderr = process.communicate(timeout=30)
        if moment <= 3 * bare:
            continue

        assert process.returncode in (0, 75), (moment, number, process.returncode, stderr)
        assert "Traceback" not in stderr
        assert "Exception ignored" not in stderr
        if process.returncode == 75:
            assert stderr.endswith("stopped before any run was started\n"), stderr
