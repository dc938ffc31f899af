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

from rope_exp.files import read_json
from rope_exp.folder import read_metrics
from support.configs import REPOSITORY

TRAIN = str(REPOSITORY / "train.py")
INSIDE = str(REPOSITORY / "tests/faults/inside")  # a sitecustomize.py that breaks a rank
CLOCKS = ("tokens_per_s", "wall_s", "mfu")
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
    """Start train.py in a folder, after a command prefix and Python's arguments before it."""
    return subprocess.Popen(
        [*within, sys.executable, *launcher, TRAIN, *overrides],
        cwd=cwd,
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "default"} | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def train(*overrides: str, cwd: Path, **kwargs: Any) -> Completed:
    process = start(*overrides, cwd=cwd, **kwargs)
    stdout, stderr = process.communicate(timeout=240)
    return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)


def sabotage(*, step: int, rank: int = 0, **what: str) -> dict[str, str]:
    """Return environment variables that break a rank at a step, by variant.

    It meets one of raise, busy (for 12 s), memory, and nan (in a gradient).
    """
    harms = [f"{pe}:{rank}:{step}:{kind}" for pe, kind in what.items()]
    return {"PYTHONPATH": INSIDE, "SABOTAGE": ",".join(harms)}


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A run for a test to disturb, and the folder of the same run without disturbance."""

    command: tuple[str, ...]  # without run.dir
    folder: Path
    undisturbed: Path

    @property
    def words(self) -> list[str]:
        return [*self.command, f"run.dir={self.folder}"]

    def start(self, *overrides: str, rows: int = 0, **environment: Any) -> Process:
        process = start(*self.words, *overrides, cwd=self.folder.parent, **environment)
        wait_for(lambda: self.num_rows() >= rows, process)
        return process

    def train(self, *overrides: str, **environment: str) -> Completed:
        return train(*self.words, *overrides, cwd=self.folder.parent, **environment)

    def assert_goes_on(self, *overrides: str) -> None:
        """Resume it with the same command, and assert that it ends like the undisturbed run."""
        done = self.train(*overrides)
        assert done.returncode == 0, done.stderr
        assert_same_run(self.undisturbed, self.folder)

    def num_rows(self) -> int:
        return num_rows(self.folder)

    def ranks(self) -> list[int]:
        """Return the process ids of its ranks, in the order in which they were started."""
        found = processes_of(self.folder).items()
        return sorted(pid for pid, command in found if "rope_exp.worker" in command)

    def checkpoints(self) -> list[int]:
        names = [path.name for path in (self.folder / "checkpoints").glob("step_*")]
        return sorted(int(name.removeprefix("step_")) for name in names)


def stopped_by(process: Process, number: signal.Signals) -> str:
    """Send a signal to a run, assert exit code 75 and no traceback, and return its stderr."""
    process.send_signal(number)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 75, stderr
    assert "Traceback" not in stderr
    return stderr


def wait_for(condition: Callable[[], Any], process: Process, seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        assert process.poll() is None, process.communicate()
        time.sleep(0.005)


def until(is_so: Callable[[], object], seconds: float = 30.0) -> None:
    """Wait until `is_so()` is true, or raise TimeoutError."""
    end = time.monotonic() + seconds
    while not is_so():
        if time.monotonic() > end:
            raise TimeoutError(f"not within {seconds:.0f} s")
        time.sleep(0.05)


def num_rows(folder: Path) -> int:
    path = folder / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def starts(runs: Path) -> dict[str, int]:
    """Return how often each run of a group that is done was started, by variant."""
    folders = [path.parent for path in runs.glob("*/seed0/result.json")]
    return {path.parent.name: len(read_json(path / "env.json")["started"]) for path in folders}


def numbers(folder: Path) -> list[dict[str, Any]]:
    return [{key: row[key] for key in NUMBERS if key in row} for row in read_metrics(folder)]


def final(folder: Path, name: str) -> bytes:
    """Return a file of a run's newest checkpoint."""
    newest = max((folder / "checkpoints").glob("step_*"))
    return (newest / f"{name}.safetensors").read_bytes()


def assert_same_run(left: Path, right: Path) -> None:
    assert numbers(left) == numbers(right)
    assert final(left, "model") == final(right, "model")
    mine, other = (read_json(folder / "result.json") for folder in (left, right))
    assert mine | dict.fromkeys(CLOCKS) == other | dict.fromkeys(CLOCKS)


def assert_same_losses(left: Path, right: Path, *, tolerance: float) -> None:
    for one, other in zip(numbers(left), numbers(right), strict=True):
        assert abs(one["train/loss"] - other["train/loss"]) <= tolerance


def kill_the_tree(pid: int) -> None:
    """Kill (SIGKILL) the children of a dispatcher, then the dispatcher."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    for victim in [*map(int, children), pid]:
        os.kill(victim, signal.SIGKILL)


def processes_of(folder: Path) -> dict[int, str]:
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
