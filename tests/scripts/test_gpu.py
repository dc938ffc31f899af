"""One command for a machine that is lent for a while: its parts, its time, and going on."""

import subprocess
import sys
import tarfile
from pathlib import Path

import gpu
import pytest
from support.campaigns import records_of
from support.configs import REPOSITORY

from rope_exp.system.errors import EXIT_STOPPED

SCRIPT = str(REPOSITORY / "scripts/gpu.py")


def run(home: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    given = ["--campaigns", "mine", "--only", "mine", "--config-dir", str(home)]
    command = [sys.executable, SCRIPT, "--out", "out", *given, *words]
    return subprocess.run(command, cwd=home, capture_output=True, text=True, check=False)


def test_a_campaign_leaves_its_records_packed(home: Path) -> None:
    """And the same command again has nothing left to do."""
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
    assert "mine: not begun, 30 s are left" in done.stderr
    assert not (home / "out/mine.log").exists()


def test_a_part_that_takes_too_long_is_stopped(tmp_path: Path) -> None:
    part = gpu.Part("slow", ["-c", "import time; print('begun', flush=True); time.sleep(60)"], 1.0)
    assert gpu.run(part, 3.0, tmp_path) == EXIT_STOPPED
    assert (tmp_path / "slow.log").read_text() == "begun\n"


@pytest.mark.parametrize("name", [part.name for part in gpu.parts(gpu.CAMPAIGNS, None)])
def test_every_part_is_a_command_that_there_is(name: str) -> None:
    """Asked for its help, or for what it would do."""
    [part] = [each for each in gpu.parts(gpu.CAMPAIGNS, None) if each.name == name]
    look = {"tests": "--collect-only"}.get(name, "--help" if "bench" in name else "--list")
    words = [sys.executable, *part.words, look]
    done = subprocess.run(words, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
