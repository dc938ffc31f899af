"""Tests of scripts/gpu.py: its parts and time limits, and a rehearsal on a machine that lacks much.

The rehearsal packs here, and unpacks and trains in an empty folder, with a Python that has only
torch, accelerate, tokenizers, safetensors and PyYAML.
"""

import os
import re
import shutil
import subprocess
import sys
import time
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import gpu
import pytest
from support.campaigns import PYTHONPATH, SHORT, records_of, write_campaign
from support.configs import REPOSITORY

from rope_exp.errors import EXIT_FAILED, EXIT_STOPPED
from rope_exp.files import read_json

SCRIPT = str(REPOSITORY / "paper/gpu.py")
# The machine for which `gpu.py` packs has these, and what they require.
THERE = ("torch", "accelerate", "tokenizers", "safetensors", "PyYAML")


def run(
    home: Path, *words: str, python: str = sys.executable
) -> "subprocess.CompletedProcess[str]":
    command = [python, SCRIPT, "mine", "--out", "out", "--config-dir", str(home), *words]
    environment = os.environ | {"ROPE_EXP_DEVICE": "cpu", "PYTHONPATH": PYTHONPATH}
    return subprocess.run(
        command, cwd=home, env=environment, capture_output=True, text=True, check=False
    )


def bare_python(folder: Path) -> str:
    """Make an environment with the packages of THERE alone, and return its interpreter."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    [site] = folder.glob("lib/python*/site-packages")
    names = [*THERE]
    for name in names:
        try:
            found = distribution(name)
        except PackageNotFoundError:
            continue  # required on another platform
        for required in found.requires or ():
            if "extra ==" not in required:
                names.append(re.split(r"[^\w.-]", required)[0])
        names[:] = dict.fromkeys(names)
        for top in {file.parts[0] for file in found.files or ()} - {"..", "__pycache__"}:
            if not (site / top).exists():
                (site / top).symlink_to(Path(str(found.locate_file(top))))
    return str(folder / "bin/python")


@pytest.mark.torture
def test_a_machine_that_lacks_much_trains_from_a_pack(home: Path, tmp_path: Path) -> None:
    """The record there has the digest of the data here, though no text has travelled."""
    write_campaign(home, fixed=[*SHORT], rows={"vo": ["pe=vo_rope"]})
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    packed = run(home, "--pack", "pack", "--python", python)
    assert packed.returncode == 0, packed.stderr
    [digest] = re.findall("data_sha256 ([0-9a-f]{64})", packed.stderr)

    there = tmp_path / "there"
    there.mkdir()
    for name in ("pack", "campaign"):
        shutil.move(home / name, there / name)
    bare = bare_python(tmp_path / "bare")
    lacks = "import hydra, pydantic"
    assert subprocess.run([bare, "-c", lacks], capture_output=True, check=False).returncode

    trained = run(there, "--unpack", "pack", "--seconds", "200", python=bare)
    assert trained.returncode == 0, trained.stderr + (there / "out/mine.log").read_text()
    [record] = records_of(there)
    assert read_json(record)["result"]["data_sha256"] == digest

    tune = [bare, str(REPOSITORY / "scripts/gpu_tune.py"), "--help"]
    environment = os.environ | {"PYTHONPATH": f"{REPOSITORY}:{there}/pack/site"}
    subprocess.run(tune, env=environment, capture_output=True, check=True)


def test_what_has_no_time_left_is_not_begun(tmp_path: Path) -> None:
    assert gpu.run_all(["mine"], [], 30.0, tmp_path) == EXIT_STOPPED
    assert not (tmp_path / "mine.log").exists()


def test_failed_tests_end_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ends = {"tune": "print('measured')"}
    monkeypatch.setattr(gpu, "words_of", lambda part, *_: ["-c", ends[part]])
    for ends["tests"] in ("raise SystemExit(1)", "import os; os.kill(os.getpid(), 9)"):
        assert gpu.run_all(["tests", "tune"], [], 100.0, tmp_path) == EXIT_FAILED
        assert not (tmp_path / "tune.log").exists()
    ends["tests"] = ""
    assert gpu.run_all(["tests", "tune"], [], 100.0, tmp_path) == 0
    assert (tmp_path / "tune.log").read_text() == "measured\n"


def test_mps_runs_for_a_campaign_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the option it reads its commands from standard input."""
    log = tmp_path / "log"
    program = tmp_path / "nvidia-cuda-mps-control"
    program.write_text(f'#!/bin/sh\n[ "$1" = -d ] && echo start >> {log} || cat >> {log}\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    part = ["-c", f"open({str(log)!r}, 'a').write('part\\n')"]
    monkeypatch.setattr(gpu, "words_of", lambda *_: part)
    assert gpu.run_all(["tune", "mine"], [], 100.0, tmp_path) == 0
    assert log.read_text() == "part\nstart\npart\nquit\n"


# This code starts a child process, prints its pid, and waits.
FAMILY = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
print(child.pid, flush=True)
time.sleep(60)
"""


def test_a_part_that_takes_too_long_ends_with_its_own(tmp_path: Path) -> None:
    """A surviving child would hold the GPU's memory while the next part is timed."""
    log = tmp_path / "slow.log"
    assert gpu.run(["-c", FAMILY], 2.0, log) == EXIT_STOPPED
    child = Path("/proc") / log.read_text().strip() / "stat"
    deadline = time.monotonic() + 5
    # A zombie has ended, too.
    while child.exists() and child.read_text().rpartition(")")[2].split()[0] != "Z":
        assert time.monotonic() < deadline
        time.sleep(0.05)
