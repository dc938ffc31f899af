"""Copies of finished runs that keep the last weights in half precision, and no optimizer."""

import shutil
from pathlib import Path

from rope_exp.run import checkpoint
from rope_exp.run.folder import CONFIG, ENV, RESULT

COPIED = (CONFIG, ENV, RESULT, "tokenizer.json")


def keep(run: Path, out: Path) -> None:
    """Copy a finished run, from which `load_run` and `export` read; an existing copy is kept.

    Matrices are rounded to bfloat16. Norms and learned frequencies, which are small, are not.

    Raises:
        CheckpointError: no checkpoint of the run verifies.
        OSError: the copy cannot be written.
    """
    saved = checkpoint.load_newest(run / "checkpoints")
    if saved is None or (out / RESULT).exists():
        return

    halves = {
        name: tensor.bfloat16() if tensor.ndim > 1 else tensor
        for name, tensor in saved.model.items()
    }
    out.mkdir(parents=True, exist_ok=True)
    checkpoint.save(out / "checkpoints", saved.step, halves, {}, saved.state)
    # The result comes last, as in every run's folder.
    for name in sorted(COPIED, key=lambda name: name == RESULT):
        shutil.copy2(run / name, out / name)
