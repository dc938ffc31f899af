"""Tests of the commands: their output, their exit codes, and signals while they start."""

import functools
import os
import re
import resource
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.command import assert_refused, command, write
from support.configs import REPOSITORY

import rope_exp


def test_help_is_the_projects_own(tmp_path: Path) -> None:
    """Help lists the choices of each group, also those in --config-dir."""
    write(tmp_path / "more" / "pe" / "mine.yaml", "# My own. It rotates.\nname: Mine\n")
    done = command("--help", "--config-dir", "more", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for words in ("rope-exp train pe=vo_rope", "rope-exp campaign NAME", "Exit codes: 0 done"):
        assert words in done.stdout
    assert re.search(r"^pe: .*\bmine, .*\bvo_rope$", done.stdout, re.MULTILINE)


def test_the_package_lists_its_public_names() -> None:
    """They are imported late, and completion in an editor or a notebook reads `dir`."""
    assert {*rope_exp.__all__} <= {*dir(rope_exp)}


@pytest.mark.parametrize("missing", ["pydantic", "hydra"])
def test_a_python_without_our_packages_is_one_sentence(tmp_path: Path, missing: str) -> None:
    """Such as the system's, where .venv was not activated."""
    write(tmp_path / "absent.py", f"import sys\nsys.modules[{missing!r}] = None\n")
    code = "import absent; from rope_exp.__main__ import main; raise SystemExit(main('train'))"
    write(tmp_path / "run.py", code)
    done = command("pe=nope", cwd=tmp_path, script=str(tmp_path / "run.py"))
    assert_refused(done, f"python={sys.executable}: lacks {missing}", ".venv/bin/activate")
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize("script", ["train.py", "scripts/report.py"])
def test_a_script_by_the_systems_python_is_one_sentence(tmp_path: Path, script: str) -> None:
    """Neither the package nor what it needs is installed there, as without `site`."""
    words = [sys.executable, "-S", "-E", "-B", str(REPOSITORY / script)]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    assert_refused(done, f"python={sys.executable}: lacks ", ".venv/bin/activate")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("", "rope-exp train pe=vo_rope"),
        ("--version", f"{rope_exp.__version__}\n"),
        ("campaign --help", "usage: rope-exp campaign"),
    ],
)
def test_one_door_has_every_command(tmp_path: Path, words: str, said: str) -> None:
    """The test runs `python -m rope_exp ...`, which is the same as `rope-exp ...`."""
    script, *rest = words.split() or [""]
    done = command(*rest, script=script, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert said in done.stdout


@pytest.mark.parametrize("encoding", ["latin-1", "ascii"])
def test_a_terminal_without_our_characters_gets_others(tmp_path: Path, encoding: str) -> None:
    """Python itself would end in a traceback, and leave nothing of the output."""
    words = ["--cfg", "job", "model.name=x", "data=files", "data.text_column='漢字 Δ'"]
    done = command(*words, cwd=tmp_path, PYTHONIOENCODING=encoding)
    assert done.returncode == 0
    assert done.stderr == ""
    assert "text_column: ?? ?\n" in done.stdout


# There is neither HOME nor an entry in the list of users, as in many containers.
HOMELESS = """
import os, pwd

def nobody(uid):
    raise KeyError(f"getpwuid(): uid not found: {uid}")

os.environ.pop("HOME")
pwd.getpwuid = nobody
"""


def test_without_a_home_a_cache_must_be_named(tmp_path: Path) -> None:
    write(tmp_path / "site/sitecustomize.py", HOMELESS)
    paths = f"{tmp_path / 'site'}:{REPOSITORY}"
    words = ["data=files", f"data.path={tmp_path}", "tokenizer=bytes"]
    done = command(*words, cwd=tmp_path, script="prepare", PYTHONPATH=paths, ROPE_EXP_CACHE="")
    assert_refused(done, "data.cache_dir=~/.cache/rope_exp: there is no home folder here")


# The limits in imports of torch, or 3 s: a mistake in a config is told without torch.
FAST, SLOW = 1, 6

MISTAKES = [
    ("trian", "command=trian: must be one of campaign, ", SLOW),
    ("scripts/report.py --nosuch", "usage: ", SLOW),
    ("train +tracker.api_key=hunter2", "tracker.api_key: there is no such key", FAST),
    ("train --config-dir nosuch", "config: Additional config directory", FAST),
    ("train train.num_steps=0", "train.num_steps=0", FAST),
    # A missing corpus is found after the model is counted, and a sweep composes each of its runs.
    ("train data=files data.path=nowhere", "data.path=nowhere", SLOW),
    ("train -m pe=nope,vo_rope run.dir=same", "run.dir=same", SLOW),
]
MORE = [
    ("train -m --cfg job", "config: Only one of --run, --multirun, --cfg", FAST),
    ("train train.global_batch_size=3 launch.num_processes=2", "train.global_batch_size=3", FAST),
    ("train launch=one_gpu_each", "launch.device=cuda", FAST),
    ("train -m pe.rotate=[q],[x] train.num_steps=1", "pe.rotate=", SLOW),
]


@functools.cache
def seconds_of_import() -> float:
    """Return the CPU seconds in which this machine imports torch: from 1.5 to 5.6."""
    before = cpu_seconds()
    subprocess.run([sys.executable, "-c", "import torch"], check=True)
    return cpu_seconds() - before


def cpu_seconds() -> float:
    """Return the CPU seconds of finished child processes, which other load does not affect."""
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    return spent.ru_utime + spent.ru_stime


@pytest.mark.parametrize(
    ("words", "said", "num_imports"),
    [*MISTAKES, *(pytest.param(*case, marks=pytest.mark.torture) for case in MORE)],
    ids=[case[0] for case in MISTAKES + MORE],
)
def test_a_mistake_exits_with_2_at_once(
    tmp_path: Path, words: str, said: str, num_imports: int
) -> None:
    """It is one sentence within some seconds of CPU time, and writes nothing."""
    most = max(3.0, num_imports * seconds_of_import())
    script, *rest = words.split()
    before = cpu_seconds()
    done = command(*rest, script=script, cwd=tmp_path, PATH=str(tmp_path))
    assert_refused(done, f"error: {said}")
    assert cpu_seconds() - before < most
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_usage_of_hydras_and_a_lack_of_slurm_exit_with_2(tmp_path: Path) -> None:
    done = command("launch=slurm", cwd=tmp_path, PATH=str(tmp_path))
    assert_refused(done, "launch=slurm: there is no SLURM here (no srun); launch=slurm_local")
    usage = command("--pe", "x", cwd=tmp_path)
    assert usage.returncode == 2
    assert "unrecognized arguments: --pe" in usage.stderr


@pytest.mark.parametrize(
    "flags",
    [["--info", "all"], ["--cfg", "job"], pytest.param(["--help"], marks=pytest.mark.torture)],
    ids=" ".join,
)
def test_a_reader_that_leaves_is_no_failure(tmp_path: Path, flags: list[str]) -> None:
    """A reader that closes the pipe, like `head -1`, causes exit code 0 and an empty stderr."""
    train = shlex.join([sys.executable, str(REPOSITORY / "train.py"), *flags])
    script = f"{{ {train}; echo code $? >&2; }} | true"
    done = subprocess.run(["sh", "-c", script], cwd=tmp_path, capture_output=True)
    assert done.stderr == b"code 0\n"


@pytest.mark.parametrize(
    ("words", "number", "delay"),
    [
        ("train.num_steps=100000", signal.SIGTERM, 0.5),
        ("--cfg job", signal.SIGINT, 0.0),
        ("-m seed=0,1", signal.SIGUSR1, 0.2),
    ],
)
def test_a_signal_in_the_first_second(
    tmp_path: Path, words: str, number: signal.Signals, delay: float
) -> None:
    """The signal gives exit code 75 and a sentence, or comes too late; never a traceback.

    Nobody listens until Python and our log have started.
    """
    started = time.monotonic()
    subprocess.run([sys.executable, "-c", "import rope_exp.errors"], check=True)
    first = 2 * (time.monotonic() - started)
    process = subprocess.Popen(
        [sys.executable, str(REPOSITORY / "train.py"), *words.split()],
        cwd=tmp_path,
        env=os.environ | {"CUDA_VISIBLE_DEVICES": "", "ROPE_EXP_CACHE": "cache"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    time.sleep(first + delay)
    process.send_signal(number)
    _, stderr = process.communicate(timeout=30)
    assert process.returncode in (0, 75), (process.returncode, stderr)
    assert "Traceback" not in stderr
    assert "Exception ignored" not in stderr
    if process.returncode == 75:
        assert stderr.endswith("stopped; no run was in progress\n"), stderr
