"""Small ext4 file systems on loop devices, with simulated power cuts."""

import fcntl
import os
import shutil
import struct
import subprocess
import time
from pathlib import Path

import pytest

from support.runs import Process, kill_the_tree, processes_of

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
