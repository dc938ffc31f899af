"""Script that breaks the save of a checkpoint at every file operation, in every way of files.c.

Afterwards every listed checkpoint verifies, the next start resumes from the newest one, and it can
save. No error leaves a temporary folder, and that of a full disk says so.
"""

import ctypes
import itertools
import os
import sys
import tempfile
from pathlib import Path

import torch

from rope_exp import checkpoint
from rope_exp.folder import list_steps

KILLED_BEFORE, KILLED_AFTER, DISK_FULL, INPUT_OUTPUT_ERROR = range(1, 5)
# How a child ends that is not killed: it met no fault, went on in spite of one, or failed by one.
UNBROKEN, WENT_ON, FAILED, UNEXPLAINED = range(4)
# A file system in memory syncs at once.
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
faults = ctypes.CDLL(sys.argv[1])


def save(folder: Path, step: int) -> None:
    """Save as the training loop does: write the checkpoint, then delete the oldest."""
    tensors = {f"layer{n}.weight": torch.full((64, 64), float(step + n)) for n in range(3)}
    moments = {"m": torch.full((9,), float(step))}
    checkpoint.save(folder, step, tensors, moments, {"order_sha256": f"{step:064x}"})
    checkpoint.prune(folder, keep=2, newest=step)


def break_save(folder: Path, number: int, how: int) -> int:
    """Save step 3 in a child with one broken operation, and return its exit code."""
    child = os.fork()
    if child == 0:
        faults.fault_arm(str(folder).encode(), number, how)
        try:
            save(folder, 3)
        except OSError as error:
            is_told = how != DISK_FULL or str(error).startswith("no space left in ")
            os._exit(FAILED if is_told else UNEXPLAINED)
        os._exit(WENT_ON if faults.fault_count() >= number else UNBROKEN)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


newest_steps = set()
for how in (KILLED_BEFORE, KILLED_AFTER, DISK_FULL, INPUT_OUTPUT_ERROR):
    for number in itertools.count(1):
        with tempfile.TemporaryDirectory(dir=MEMORY) as name:
            folder = Path(name, "checkpoints")
            save(folder, 1)
            save(folder, 2)
            code = break_save(folder, number, how)
            if code == UNBROKEN:
                assert number > 20
                break
            case = (how, number, code)
            assert code < 0 if how in (KILLED_BEFORE, KILLED_AFTER) else code in (WENT_ON, FAILED)
            assert code != FAILED or not list(folder.glob(".saving-*"))

            steps = list_steps(folder)
            assert steps in ([1, 2], [1, 2, 3], [2, 3])
            for step in steps:
                tensors = checkpoint.load(folder, step).model
                for name, tensor in tensors.items():
                    assert torch.all(tensor == float(step + int(name[5]))), case

            # The next start.
            checkpoint.clear_leftovers(folder)
            newest = checkpoint.load_newest(folder)
            assert newest is not None
            assert newest.step == steps[-1]
            save(folder, 4)
            left = sorted(path.name for path in folder.iterdir())
            assert left == [f"step_{newest.step:08d}", "step_00000004"]
            newest_steps.add((how, newest.step))
assert newest_steps >= {(KILLED_BEFORE, 2), (KILLED_BEFORE, 3), (DISK_FULL, 2)}
assert (INPUT_OUTPUT_ERROR, 2) in newest_steps
