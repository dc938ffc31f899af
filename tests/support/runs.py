"""Helpers to start, watch and kill real runs in real processes, and to compare their numbers."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from rope_exp.files import read_json
from rope_exp.folder import read_metrics
from support.configs import REPOSITORY

TRAIN = str(REPOSITORY / "train.py")
INSIDE = str(REPOSITORY / "tests/faults/inside")  # a sitecustomize.py that breaks a rank
NUMBERS = ("step", "tokens", "train/loss", "val/loss", "lr", "grad_norm")

Process = subprocess.Popen[str]
Completed = subprocess.CompletedProcess[str]


def start(
    *overrides: str,
    cwd: Path,
    within: tuple[str, ...] = (),
    launcher: tuple[str, ...] = (),
    **environment: str,
) -> Process:
    """Start train.py in a folder, and return its process without waiting.

    Args:
        within: a prefix that runs the command after it, such as `ip netns exec NAME`.
        launcher: Python's arguments before train.py.
    """
    return subprocess.Popen(
        [*within, sys.executable, *launcher, TRAIN, *overrides],
        cwd=cwd,
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "default"} | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def train(*overrides: str, cwd: Path, **kwargs: Any) -> Completed:
    """Run train.py in a folder to its end, and return the completed process."""
    process = start(*overrides, cwd=cwd, **kwargs)
    stdout, stderr = process.communicate(timeout=240)
    return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)


def sabotage(*, step: int, rank: int = 0, **what: str) -> dict[str, str]:
    """Return environment variables that break one rank of some runs at one step.

    Args:
        what: by variant, one of raise, busy (for 12 s), memory, and nan (in a gradient).
    """
    harms = [f"{pe}:{rank}:{step}:{kind}" for pe, kind in what.items()]
    return {"PYTHONPATH": INSIDE, "SABOTAGE": ",".join(harms)}


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A run for a test to disturb.

    Attributes:
        command: its overrides, without run.dir.
        folder: the run's folder.
        undisturbed: the folder of the same run, finished without disturbance.
    """

    command: tuple[str, ...]
    folder: Path
    undisturbed: Path

    @property
    def words(self) -> list[str]:
        """The overrides of its command line."""
        return [*self.command, f"run.dir={self.folder}"]

    def start(self, *overrides: str, rows: int = 0, **environment: str) -> Process:
        """Start the run, and wait until this many rows are recorded."""
        process = start(*self.words, *overrides, cwd=self.folder.parent, **environment)
        self.wait_for_rows(rows, process)
        return process

    def wait_for_rows(self, rows: int, process: Process) -> None:
        """Wait until this many rows are recorded; the process must stay alive."""
        wait_for(lambda: self.num_rows() >= rows, process)

    def train(self, *overrides: str, **environment: str) -> Completed:
        """Run it to its end, and return the completed process."""
        return train(*self.words, *overrides, cwd=self.folder.parent, **environment)

    def assert_goes_on(self, *overrides: str) -> None:
        """Resume it with the same command, and assert that it ends like the undisturbed run."""
        done = self.train(*overrides)
        assert done.returncode == 0, done.stderr
        assert_same_run(self.undisturbed, self.folder)

    def num_rows(self) -> int:
        """Return the number of recorded rows."""
        return num_rows(self.folder)

    def ranks(self) -> list[int]:
        """Return the process ids of its ranks, in rank order."""
        return ranks_of(self.folder)

    def checkpoints(self) -> list[int]:
        """Return the steps of its checkpoints, ascending."""
        names = [path.name for path in (self.folder / "checkpoints").glob("step_*")]
        return sorted(int(name.removeprefix("step_")) for name in names)


def stopped_by(process: Process, number: signal.Signals) -> str:
    """Send a signal to a run, assert exit code 75 and no traceback, and return its stderr."""
    process.send_signal(number)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 75, stderr
    assert "Traceback" not in stderr
    return stderr


def wait_for(condition: Callable[[], Any], process: Process, seconds: float = 60) -> None:
    """Wait until `condition()` is true; the process must stay alive."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        assert process.poll() is None, process.communicate()
        time.sleep(0.005)


def num_rows(folder: Path) -> int:
    """Return the number of complete rows in a run's metrics so far."""
    path = folder / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def numbers(folder: Path) -> list[dict[str, Any]]:
    """Return the rows of a run's metrics, without times."""
    return [{key: row[key] for key in NUMBERS if key in row} for row in read_metrics(folder)]


def final_weights(folder: Path) -> dict[str, torch.Tensor]:
    """Return the tensors of a run's newest checkpoint."""
    newest = max((folder / "checkpoints").glob("step_*"))
    return load_file(newest / "model.safetensors")


def final_moments(folder: Path) -> bytes:
    """Return the optimizer's part of a run's newest checkpoint, byte for byte."""
    newest = max((folder / "checkpoints").glob("step_*"))
    return (newest / "optimizer.safetensors").read_bytes()


def result_without_clock(folder: Path) -> dict[str, Any]:
    """Return result.json without times."""
    result = read_json(folder / "result.json")
    return {key: result[key] for key in result if key not in ("tokens_per_s", "wall_s", "mfu")}


def assert_same_run(left: Path, right: Path) -> None:
    """Assert that two runs are equal in every row, weight and result."""
    assert numbers(left) == numbers(right)
    weights = final_weights(right)
    assert all(torch.equal(tensor, weights[name]) for name, tensor in final_weights(left).items())
    assert result_without_clock(left) == result_without_clock(right)


def assert_same_losses(left: Path, right: Path, *, tolerance: float) -> None:
    """Assert that two runs' training losses are equal up to rounding."""
    for one, other in zip(numbers(left), numbers(right), strict=True):
        assert abs(one["train/loss"] - other["train/loss"]) <= tolerance


def kill_the_tree(pid: int) -> None:
    """Kill the dispatcher and its children (SIGKILL)."""
    for victim in tree_of(pid):
        os.kill(victim, signal.SIGKILL)


def tree_of(pid: int) -> list[int]:
    """Return the process ids of a dispatcher's children, then its own."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [*map(int, children), pid]


def processes_of(folder: Path) -> dict[int, str]:
    """Return the command lines of other processes that name this folder, by process id."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            # The process ended in the meantime.
            continue
        if str(folder) in command and int(path.parent.name) != os.getpid():
            found[int(path.parent.name)] = command
    return found


def ranks_of(folder: Path) -> list[int]:
    """Return the process ids of a run's ranks, in the order in which they were started."""
    found = processes_of(folder).items()
    return sorted(pid for pid, command in found if "rope_exp.worker" in command)
