"""Copies of finished runs that keep the last weights in half precision, and no optimizer."""

import os
import platform
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rope_exp.run import checkpoint
from rope_exp.run.folder import CONFIG, ENV, RESULT, read_env, read_result
from rope_exp.system.errors import CheckpointError
from rope_exp.system.files import sync_folder, write_atomically, write_json

MARK = "matrices are rounded to bfloat16; the loss was measured before"


def keep(run: Path, out: Path, result: Mapping[str, Any]) -> bool:
    """Copy a finished run, from which `load_run` and `export` read.

    Matrices are rounded to bfloat16. Norms, biases and learned frequencies are not.

    Args:
        result: of the run's record.
    Returns:
        Whether the copy is there; False if the run of this record is not.
    Raises:
        RecordError: a file of the run cannot be read.
        CheckpointError: the checkpoint of its last step does not verify.
        OSError: the copy cannot be written.
    """
    if out.exists() and read_result(out) == result:
        return True
    if read_result(run) != result:
        return False

    saved = checkpoint.load_newest(run / "checkpoints")
    if saved is None or saved.step != result["steps"]:
        raise CheckpointError(f"{run} holds no checkpoint of its last step, {result['steps']:,}")
    tensors = {
        name: tensor.bfloat16() if tensor.ndim > 1 and name.endswith(".weight") else tensor
        for name, tensor in saved.model.items()
    }

    # Another process, perhaps of another machine, may make the same copy: the last one stays.
    temporary = out.with_name(f".{out.name}.{platform.node()}.{os.getpid()}")
    try:
        checkpoint.save(temporary / "checkpoints", saved.step, tensors, {}, saved.state)
        env = read_env(run)
        write_json(temporary / ENV, env | {"marks": [*env["marks"], MARK]})
        for name in (CONFIG, "tokenizer.json", RESULT):
            write_atomically(temporary / name, (run / name).read_bytes())
        shutil.rmtree(out, ignore_errors=True)
        temporary.rename(out)
        sync_folder(out.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return True
