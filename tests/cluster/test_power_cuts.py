"""Test of POWER_CUTS power cuts at random moments, after which the same command is repeated.

After each, everything that was reported done exists, and everything that exists is complete.
"""

import fcntl
import os
import random
import shutil
import struct
import subprocess
import time
from pathlib import Path

import pytest
from support.runs import (
    Process,
    assert_same_run,
    kill_the_tree,
    num_rows,
    numbers,
    processes_of,
    start,
    train,
)

from rope_exp.checkpoint import load
from rope_exp.folder import list_steps

pytestmark = pytest.mark.cluster

CUTS = int(os.environ.get("POWER_CUTS", "12"))
SAVE_EVERY = 10  # of the run `whole`
# EXT4_IOC_SHUTDOWN without a log flush: nothing reaches the device after it, not even the journal.
SHUTDOWN = 0x8004587D
NO_LOG_FLUSH = 2


class Disk:
    """An ext4 file system on a loop device; without a journal, writes lose their order."""

    def __init__(self, folder: Path, *, journal: bool = True, megabytes: int = 64) -> None:
        missing = [name for name in ("mkfs.ext4", "e2fsck", "mount") if not shutil.which(name)]
        if os.geteuid() != 0 or not Path("/dev/loop-control").exists() or missing:
            pytest.skip("a disk of one's own takes root, loop devices and e2fsprogs")

        self.image = folder / "disk.img"
        self.root = folder / "disk"
        self.journal = journal
        self.root.mkdir()
        with self.image.open("wb") as file:
            file.truncate(megabytes << 20)
        options = [] if journal else ["-O", "^has_journal"]
        subprocess.run(["mkfs.ext4", "-q", *options, self.image], check=True)
        self.mount()

    def mount(self) -> None:
        subprocess.run(["mount", "-o", "loop", self.image, self.root], check=True)

    def unmount(self) -> None:
        """Unmount it, and detach its loop device, once the last process has left."""
        deadline = time.monotonic() + 20
        while subprocess.run(["umount", self.root], capture_output=True).returncode:
            if time.monotonic() > deadline:
                # A lazy unmount takes effect when the last process leaves.
                subprocess.run(["umount", "--lazy", self.root], check=True)
                raise AssertionError(f"{self.root} is in use: {processes_of(self.root)}")
            time.sleep(0.05)

    def cut(self, process: Process) -> None:
        """Cut the power while a command runs, and mount the disk again.

        It continues from a copy, because unmounting would still write cached metadata.
        """
        descriptor = os.open(self.root, os.O_RDONLY)
        fcntl.ioctl(descriptor, SHUTDOWN, struct.pack("I", NO_LOG_FLUSH))
        os.close(descriptor)
        if process.poll() is None:
            kill_the_tree(process.pid)
        process.communicate(timeout=60)
        # Writes in flight may still reach the device.
        time.sleep(0.1)

        reached = self.image.with_suffix(".reached")
        subprocess.run(["cp", "--sparse=always", self.image, reached], check=True)
        self.unmount()
        reached.replace(self.image)
        if not self.journal:
            # The exit code is 1 if e2fsck repaired the file system.
            assert subprocess.run(["e2fsck", "-fy", self.image], capture_output=True).returncode < 2
        self.mount()


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
