"""Test of POWER_CUTS power cuts at random moments, after which the same command is repeated.

After each, everything that was reported done exists, and everything that exists is complete.
"""

import os
import random
import shutil
import time
from pathlib import Path

import pytest
from support.disks import Disk
from support.runs import assert_same_run, num_rows, numbers, start, train

from rope_exp.checkpoint import list_steps, load

pytestmark = pytest.mark.cluster

CUTS = int(os.environ.get("POWER_CUTS", "12"))
SAVE_EVERY = 10  # of the run `whole`


@pytest.mark.parametrize("journal", [True, False])
def test_a_run(journal: bool, whole: tuple[Path, list[str]], tmp_path: Path) -> None:
    """A row after a checkpoint's step reports that the checkpoint is saved."""
    undisturbed, command = whole
    rows = numbers(undisturbed)
    rng = random.Random(f"{journal}")
    disk = Disk(tmp_path, journal=journal)
    run = disk.root / "run"
    words = [*command, f"run.dir={run}"]

    def is_at(moment: str, begun: int) -> bool:
        if moment == "beginning":
            return (run / "config.yaml").exists()
        if moment == "end":
            return False
        is_saving = any((run / "checkpoints").glob(".saving-*"))
        return num_rows(run) > begun and (moment == "row" or is_saving)

    try:
        for _ in range(CUTS // 2):
            moment = rng.choice(("beginning", "row", "row", "save", "save", "end"))
            begun = num_rows(run)
            process = start(*words, cwd=tmp_path)
            deadline = time.monotonic() + 120
            while process.poll() is None and not is_at(moment, begun):
                assert time.monotonic() < deadline
                time.sleep(0.001)
            longest = {"beginning": 2.0, "row": 0.3, "save": 0.02, "end": 0.0}[moment]
            time.sleep(longest * rng.random())
            reported = max(num_rows(run) - 1, 0) // SAVE_EVERY * SAVE_EVERY
            code = process.poll()
            assert code in (None, 0)
            disk.cut(process)

            assert code is None or (run / "result.json").exists()
            steps = list_steps(run / "checkpoints")
            newest = max(steps, default=0)
            print(f"{moment}: saved {reported}, found {steps}, {num_rows(run)} rows")
            assert newest >= reported
            assert all(load(run / "checkpoints", step).step == step for step in steps)
            assert num_rows(run) >= newest
            assert numbers(run) == rows[: num_rows(run)]
            if (run / "result.json").exists():
                assert_same_run(undisturbed, run)
                shutil.rmtree(run)

        done = train(*words, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert_same_run(undisturbed, run)
    finally:
        disk.unmount()
