"""Real runs in real processes: started, watched, killed, and compared number by number."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from rope_exp.run.metrics import read_metrics
from rope_exp.system.files import read_json
from support.configs import REPOSITORY

NUMBERS = ("step", "tokens", "train/loss", "val/loss", "lr", "grad_norm")


def start(
    *overrides: str, cwd: Path, launcher: tuple[str, ...] = (), **environment: str
) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, *launcher, str(REPOSITORY / "train.py"), *overrides],
        cwd=cwd,
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "default"} | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def train(*overrides: str, cwd: Path, **kwargs: Any) -> "subprocess.CompletedProcess[str]":
    process = start(*overrides, cwd=cwd, **kwargs)
    stdout, stderr = process.communicate(timeout=240)
    return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)


def numbers(folder: Path) -> list[dict[str, Any]]:
    """The rows without what a clock wrote."""
    return [{key: row[key] for key in NUMBERS if key in row} for row in read_metrics(folder)]


def final_weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(sorted((folder / "checkpoints").glob("step_*"))[-1] / "model.safetensors")


def assert_same_run(left: Path, right: Path) -> None:
    assert numbers(left) == numbers(right)
    weights = final_weights(right)
    assert all(torch.equal(tensor, weights[name]) for name, tensor in final_weights(left).items())
    timing = {"tokens_per_s", "wall_s"}
    results = [read_json(folder / "result.json") for folder in (left, right)]
    assert {k: v for k, v in results[0].items() if k not in timing} == {
        k: v for k, v in results[1].items() if k not in timing
    }


def kill_alone(pid: int) -> None:
    """kill -9 the dispatcher; its child must not live on and hold the run."""
    os.kill(pid, signal.SIGKILL)


def kill_the_tree(pid: int) -> None:
    """kill -9 the dispatcher and its child."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    for victim in (*map(int, children), pid):
        os.kill(victim, signal.SIGKILL)


def wait_for(
    condition: Callable[[], Any], process: "subprocess.Popen[str]", seconds: float = 60
) -> None:
    """Wait until `condition`, while the process lives."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        assert process.poll() is None, process.communicate()
        time.sleep(0.005)


def num_rows(folder: Path) -> int:
    """The whole rows of a run's metrics so far."""
    path = folder / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def processes_of(folder: Path) -> dict[int, str]:
    """The processes that name this folder on their command line, by id."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:  # it has ended meanwhile
            continue
        if str(folder) in command and int(path.parent.name) != os.getpid():
            found[int(path.parent.name)] = command
    return found
