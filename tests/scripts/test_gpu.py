"""Tests of scripts/gpu.py: its parts, its time limits, and repeated commands."""

import subprocess
import sys
import tarfile
import time
from pathlib import Path

import gpu
import pytest
from support.campaigns import records_of
from support.configs import REPOSITORY

from rope_exp.config.campaign_file import read_campaign
from rope_exp.system.errors import EXIT_FAILED, EXIT_STOPPED, EXIT_USAGE

SCRIPT = str(REPOSITORY / "scripts/gpu.py")


def run(home: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    given = ["--campaigns", "mine", "--only", "mine", "--config-dir", str(home)]
    command = [sys.executable, SCRIPT, "--out", "out", *given, *words]
    return subprocess.run(command, cwd=home, capture_output=True, text=True, check=False)


@pytest.mark.torture
def test_a_campaign_leaves_its_records_packed(home: Path) -> None:
    """Repeating the command succeeds, and adds no record."""
    for _ in range(2):
        done = run(home, "--minutes", "5")
        assert (done.returncode, done.stdout) == (0, "")
        assert "mine: exit code 0, in out/mine.log" in done.stderr
    assert len(records_of(home)) == 2
    with tarfile.open(home / "out/mine.tar") as packed:
        assert sum(name.endswith(".json") for name in packed.getnames()) == 2


def test_what_has_no_time_left_is_not_begun(home: Path) -> None:
    done = run(home, "--minutes", "0.5")
    assert done.returncode == 0
    assert "mine: not started, 30 s left" in done.stderr
    assert not (home / "out/mine.log").exists()


def test_a_part_that_there_is_not_is_refused(home: Path) -> None:
    done = run(home, "--only", "bnech")
    assert done.returncode == EXIT_USAGE
    assert "--only=bnech: is not one of tests, bench, bench_1b, mine" in done.stderr
    assert not (home / "out").exists()


# This code starts a child process, prints its pid, and waits.
FAMILY = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
print(child.pid, flush=True)
time.sleep(60)
"""


def test_a_part_that_takes_too_long_ends_with_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A surviving child would hold the GPU's memory while the next part is timed."""
    monkeypatch.setattr(gpu, "GRACE_S", 2.0)
    assert gpu.run(gpu.Part("slow", ["-c", FAMILY], 1.0), 6.0, tmp_path) == EXIT_STOPPED
    assert is_gone(int((tmp_path / "slow.log").read_text()))


def is_gone(pid: int) -> bool:
    """Return whether a process ends within 5 s; a zombie counts as ended."""
    stat = Path(f"/proc/{pid}/stat")
    for _ in range(100):
        try:
            state = stat.read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return True
        if state == "Z":
            return True
        time.sleep(0.05)
    return False


def test_a_part_that_is_killed_is_no_success(tmp_path: Path) -> None:
    words = ["-c", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"]
    assert gpu.run(gpu.Part("killed", words, 1.0), 60.0, tmp_path) == EXIT_FAILED


@pytest.mark.parametrize("name", [part.name for part in gpu.parts(gpu.CAMPAIGNS, [], Path())])
def test_every_part_is_a_command_that_there_is(name: str) -> None:
    """A part's command prints its help, or collects the tests; a campaign's file can be read."""
    [part] = gpu.chosen(gpu.parts(gpu.CAMPAIGNS, [], Path()), [name])
    if part.is_campaign:
        assert read_campaign(name, None).cells
    look = "--collect-only" if name == "tests" else "--help"
    words = [sys.executable, *part.words, look]
    done = subprocess.run(words, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
