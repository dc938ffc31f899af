"""Tests of the lines that report progress, and of a standard error that cannot be written."""

import errno
import io
import sys
from pathlib import Path

import pytest

from rope_exp import errors as console
from rope_exp.progress import Progress, describe_row

Capture = pytest.CaptureFixture[str]
ROW = {"train/loss": 3.25, "tokens_per_s": 1234.0}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return the moments of a fake monotonic clock, which reads the last of them."""
    moments = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: moments[-1])
    return moments


def test_a_run_prints_a_line_every_so_often(clock: list[float], capsys: Capture) -> None:
    """Evaluations print at once; the estimate begins after the first step, which compiles."""
    shown = Progress("vo_rope-s0", 60)
    clock.append(105.0)
    shown.show(10, f"step 10/60{describe_row(ROW)}")
    assert capsys.readouterr().err == ""

    clock.append(107.0)
    shown.show(20, f"step 20/60{describe_row(ROW | {'val/loss': 3.5})}", at_once=True)
    line = "vo_rope-s0: step 20/60, loss 3.2500, val/loss 3.5000, 1,234 tokens/s, 0:00:08 left\n"
    assert capsys.readouterr().err == line

    clock.append(117.0)
    shown.show(30, f"step 30/60{describe_row(ROW | {'tokens_per_s': None})}")
    assert capsys.readouterr().err == "vo_rope-s0: step 30/60, loss 3.2500, 0:00:18 left\n"


def test_without_steps_a_line_needs_an_end_for_its_estimate(
    clock: list[float], capsys: Capture
) -> None:
    for total in (40, None):
        progress = Progress("data", total)
        clock.append(clock[-1] + 20.0)
        progress.show(10, "10 documents")
    expected = ["data: 10 documents, no estimate yet", "data: 10 documents"]
    assert capsys.readouterr().err.splitlines() == expected


def test_a_runs_lines_are_kept_in_its_log(tmp_path: Path, capsys: Capture) -> None:
    console.keep_log(tmp_path / "log.txt")
    console.log("a line")
    assert capsys.readouterr().err == "a line\n"
    console.keep_log(tmp_path / "nowhere" / "log.txt")
    console.log("another")
    assert (tmp_path / "log.txt").read_text() == "a line\n"


class Deaf(io.StringIO):
    """A standard error on a full disk."""

    def write(self, text: str) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")


def test_words_that_nobody_can_hear_end_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Standard error is replaced at the first failure, so that Python's exit does not fail."""
    deaf = Deaf()
    monkeypatch.setattr("sys.stderr", deaf)
    console.log("lost")
    assert sys.stderr is not deaf
    console.log("lost")
    sys.stderr.close()
