"""Script that breaks the save of a checkpoint at every file operation, in every way of files.c.

Each trial is a forked child. Its line of JSON has the operation, how it was broken, how the child
ended, the steps that verify afterwards, the step that is loaded, and the names that are left after
the next start has cleaned up.
"""

import ctypes
import json
import os
import sys
import tempfile
from pathlib import Path

import torch

from rope_exp import checkpoint
from rope_exp.errors import CheckpointError

COUNT = 0
HOW = {1: "killed before", 2: "killed after", 3: "disk full", 4: "input/output error"}
faults = ctypes.CDLL(sys.argv[1])


def save(folder: Path, step: int) -> None:
    """Save as the training loop does: write the checkpoint, then delete the oldest."""
    tensors = {f"layer{n}.weight": torch.full((64, 64), float(step + n)) for n in range(3)}
    checkpoint.save(
        folder,
        step,
        tensors,
        {"m": torch.full((9,), float(step))},
        {"order_sha256": f"{step:064x}"},
    )
    checkpoint.prune(folder, keep=2, newest=step)


def attempt(folder: Path, number: int, how: int) -> int:
    """Save step 3 in a child with one broken operation, and return its exit code."""
    child = os.fork()
    if child == 0:
        faults.fault_arm(str(folder).encode(), number, how)
        try:
            save(folder, 3)
        except OSError as error:
            Path(folder.parent, "said").write_text(str(error))
            os._exit(1)
        if how == COUNT:
            print(faults.fault_count(), flush=True)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def verified(folder: Path) -> list[int]:
    """Return the steps whose checkpoints verify."""
    good = []
    for step in checkpoint.list_steps(folder):
        try:
            loaded = checkpoint.load(folder, step)
        except CheckpointError:
            continue
        assert all(torch.all(t == float(step + int(n[5]))) for n, t in loaded.model.items())
        good.append(step)
    return good


def trial(number: int, how: int) -> dict[str, object]:
    """Break the save of a third checkpoint at one operation, and return its outcome."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name, "checkpoints")
        save(folder, 1)
        save(folder, 2)
        status = attempt(folder, number, how)
        good = verified(folder)
        listed = checkpoint.list_steps(folder)
        left = sorted(path.name for path in folder.iterdir())

        # The next start must be able to resume and save, whatever was left.
        checkpoint.clear_leftovers(folder)
        newest = checkpoint.load_newest(folder)
        save(folder, 4)
        said = folder.parent / "said"
        return {
            "operation": number,
            "how": HOW.get(how),
            "status": status,
            "verified": good,
            "listed": listed,
            "said": said.read_text() if said.exists() else "",
            "left": left,
            "loaded": newest and newest.step,
            "after": sorted(path.name for path in folder.iterdir()),
        }


with tempfile.TemporaryDirectory() as name:
    folder = Path(name, "checkpoints")
    save(folder, 1)
    save(folder, 2)
    read, write = os.pipe()
    stdout = os.dup(1)
    os.dup2(write, 1)
    attempt(folder, 0, COUNT)
    os.dup2(stdout, 1)
    total = int(os.read(read, 100))
for how in HOW:
    for number in range(1, total + 1):
        print(json.dumps(trial(number, how)), flush=True)
