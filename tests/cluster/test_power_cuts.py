"""Tests of power cuts at random moments, after which the same command is repeated.

After each cut, everything that was reported done exists, and everything that exists is complete.
In the end, every number equals an undisturbed run's. POWER_CUTS is the number of cuts.
"""

import os
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.disks import Disk
from support.runs import Process, assert_same_run, num_rows, numbers, start, train

from rope_exp.checkpoint import list_steps, load

pytestmark = pytest.mark.cluster

CUTS = int(os.environ.get("POWER_CUTS", "12"))
SAVE_EVERY = 10  # of the run `whole`


@pytest.fixture
def disk(tmp_path: Path, journal: str) -> Iterator[Disk]:
    """Yield a disk of 64 MB, and unmount it at the end."""
    disk = Disk(tmp_path, journal=journal == "journal")
    yield disk
    disk.unmount()


@pytest.fixture
def rng(journal: str) -> random.Random:
    """Return a generator that draws the same moments in every session."""
    return random.Random(journal)


def follow(process: Process, is_due: Callable[[], bool], delay: float) -> str:
    """Wait until a moment is due and `delay` seconds more, or until the command ends.

    Returns:
        "running", or "ended" after exit code 0.
    """
    due_at = float("inf")
    deadline = time.monotonic() + 120
    while process.poll() is None and time.monotonic() < due_at + delay:
        assert time.monotonic() < deadline
        if due_at == float("inf") and is_due():
            due_at = time.monotonic()
        time.sleep(0.001)
    assert process.poll() in (None, 0), process.communicate()
    return "ended" if process.poll() == 0 else "running"


@pytest.mark.parametrize("journal", ["journal", "no journal"])
def test_a_run(
    disk: Disk, rng: random.Random, whole: tuple[Path, list[str]], tmp_path: Path
) -> None:
    """A row after a checkpoint's step reports that the checkpoint is saved."""
    undisturbed, command = whole
    rows = numbers(undisturbed)
    number = 0
    run = disk.root / "runs/vo/run0"
    begun = 0

    def is_saving() -> bool:
        return num_rows(run) > begun and bool(list((run / "checkpoints").glob(".saving-*")))

    moments: dict[str, tuple[Callable[[], bool], float]] = {
        "beginning": (lambda: (run / "config.yaml").exists(), 2.0),
        "row": (lambda: num_rows(run) > begun, 0.3),
        "save": (is_saving, 0.02),
        "end": (lambda: False, 0.0),
    }
    for _ in range(CUTS // 2):
        moment = rng.choice(("beginning", "row", "row", "save", "save", "end"))
        is_due, longest = moments[moment]
        begun = num_rows(run)
        process = start(*command, f"run.dir={run}", cwd=tmp_path)
        state = follow(process, is_due, longest * rng.random())
        reported = max(num_rows(run) - 1, 0) // SAVE_EVERY * SAVE_EVERY
        disk.cut(process)

        steps = list_steps(run / "checkpoints")
        newest = max(steps, default=0)
        print(f"{moment}: {state}, saved {reported}, found {steps}, {num_rows(run)} rows")
        assert newest >= reported
        assert all(load(run / "checkpoints", step).step == step for step in steps)
        assert num_rows(run) >= newest
        assert numbers(run) == rows[: num_rows(run)]
        if state == "ended":
            assert_same_run(undisturbed, run)
            number += 1
            run = disk.root / f"runs/vo/run{number}"

    done = train(*command, f"run.dir={run}", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert_same_run(undisturbed, run)
