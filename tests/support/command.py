"""Runner of commands as a user starts them: in a new process, in the test's own folder."""

import os
import subprocess
import sys
from pathlib import Path

from support.configs import REPOSITORY

Done = subprocess.CompletedProcess[str]


def started(script: str) -> list[str]:
    if script.endswith(".py"):
        return [str(REPOSITORY / script)]
    if script.startswith("-m "):
        return script.split()
    return ["-m", "rope_exp", *script.split()]


def command(*words: str, cwd: Path, script: str = "train.py", **environment: str) -> Done:
    """Run one of our scripts or commands, without GPUs and with an empty cache."""
    own = {"CUDA_VISIBLE_DEVICES": "", "ROPE_EXP_CACHE": str(cwd / "cache")}
    return subprocess.run(
        [sys.executable, *started(script), *words],
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": str(REPOSITORY)} | own | environment,
        capture_output=True,
        text=True,
        timeout=240,
    )


def in_a_process(tmp_path: Path, code: str, *words: str) -> str:
    """Run Python code with arguments and caches of its own, and return what it prints."""
    reader = tmp_path / "reader.py"
    reader.write_text(code)
    own = {"HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "1"}
    done = command(*words, cwd=tmp_path, script=str(reader), **own)
    assert done.returncode == 0, done.stderr
    return done.stdout


def assert_refused(done: Done, *named: str) -> None:
    """Assert exit code 2, and one sentence on standard error that contains each of `named`."""
    assert done.returncode == 2, (done.returncode, done.stdout, done.stderr)
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""
    for words in named:
        assert words in done.stderr


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode(errors="surrogateescape"))
