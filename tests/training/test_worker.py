"""Tests of a rank's process: its imports, and its exit code."""

import subprocess
import sys
from unittest.mock import Mock

import pytest
import torch

from rope_exp.errors import CheckpointError, ConfigError, DataError, LawError, explained


def test_a_rank_listens_before_it_imports_torch() -> None:
    """Otherwise a signal in the first seconds would end it without exit code 75."""
    script = "import sys, rope_exp.worker; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (ConfigError("train.lr", 0, "must be above 0"), 2, "train.lr=0: must be above 0"),
        (CheckpointError("does not verify"), 2, "does not verify"),
        (DataError("no network"), 1, "no network"),
        (LawError("the rotation is wrong"), 1, "the rotation is wrong"),
        (MemoryError(), 1, "out of memory (MemoryError)"),
        (torch.OutOfMemoryError("CUDA\nand more"), 1, "out of memory (CUDA and more); training"),
        (RuntimeError("std::bad_alloc"), 1, "out of memory (std::bad_alloc); training takes less"),
        (OSError(12, "Cannot allocate memory"), 1, "out of memory ([Errno 12] Cannot allocate"),
    ],
)
def test_what_is_no_bug_ends_in_one_sentence(
    error: Exception, code: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert explained(Mock(side_effect=error)) == code
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {words}")


def test_a_bug_keeps_its_traceback() -> None:
    with pytest.raises(RuntimeError, match="a bug"):
        explained(Mock(side_effect=RuntimeError("a bug")))
