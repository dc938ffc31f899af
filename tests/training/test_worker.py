"""Tests of a rank's process: its memory and collector settings, its log, and its exit code."""

import subprocess
import sys
from collections.abc import Callable

import pytest
import torch

from rope_exp.errors import (
    CheckpointError,
    ConfigError,
    DataError,
    DiskError,
    LawError,
    RecordError,
    explained,
)


def fails(error: Exception) -> Callable[[], int]:
    def action() -> int:
        raise error

    return action


def test_a_rank_listens_before_it_imports_torch() -> None:
    """Otherwise a signal in the first seconds would end it without exit code 75."""
    told = "import sys, rope_exp.worker; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", told], check=True)


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (ConfigError("train.lr", 0, "must be above 0"), 2, "train.lr=0: must be above 0"),
        (RecordError("config.yaml is no config"), 2, "config.yaml is no config"),
        (CheckpointError("does not verify"), 2, "does not verify"),
        (DataError("no network"), 1, "no network"),
        (DiskError("disk full"), 1, "disk full"),
        (LawError("the rotation is wrong"), 1, "the rotation is wrong"),
        (MemoryError(), 1, "out of memory (MemoryError)"),
        (
            torch.OutOfMemoryError("CUDA\nand more"),
            1,
            "out of memory (CUDA and more); training takes less with a smaller train.micro_batch_s",
        ),
        (RuntimeError("std::bad_alloc"), 1, "out of memory (std::bad_alloc); training takes less"),
        (OSError(12, "Cannot allocate memory"), 1, "out of memory ([Errno 12] Cannot allocate"),
        (RuntimeError("DefaultCPUAllocator: not enough"), 1, "out of memory (DefaultCPUAllocator"),
    ],
)
def test_what_is_no_bug_ends_in_one_sentence(
    error: Exception,
    code: int,
    words: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert explained(fails(error)) == code
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {words}")


def test_a_bug_keeps_its_traceback() -> None:
    with pytest.raises(RuntimeError, match="a bug"):
        explained(fails(RuntimeError("a bug")))
