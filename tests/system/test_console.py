"""Tests of progress output: lines in a log, and a bar on a terminal."""

import errno
import io
import sys
from contextlib import closing
from pathlib import Path

import pytest

from rope_exp import errors as console
from rope_exp.errors import Progress

Capture = pytest.CaptureFixture[str]
ROW = {"step": 10, "train/loss": 3.25, "tokens_per_s": 1234.0}


class Terminal(io.StringIO):
    """A standard error that claims to be a terminal."""

    def isatty(self) -> bool:
        return True


class Deaf(io.StringIO):
    """A standard error on a full disk."""

    def write(self, text: str) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return the moments of a fake monotonic clock, which reads the last of them."""
    moments = [100.0]
    monkeypatch.setattr(console.time, "monotonic", lambda: moments[-1])
    return moments


def test_a_log_gets_a_line_every_so_often(clock: list[float], capsys: Capture) -> None:
    """Rows within a few seconds print nothing, but an evaluation always prints a line."""
    with closing(Progress("vo_rope-s0", 60, 5, shown=True)) as progress:
        progress.step(6, 3.5)
        clock.append(101.0)
        progress.step(10, 3.25)
        progress.row(ROW)
        assert capsys.readouterr().err == ""

        progress.row(ROW | {"val/loss": 3.5})
        line = "vo_rope-s0: step 10/60, loss 3.2500, val 3.5000, 1,234 tokens/s, 0:00:12 left\n"
        assert capsys.readouterr().err == line

        clock.append(112.0)
        progress.row(ROW | {"step": 20, "tokens_per_s": None})
        assert capsys.readouterr().err == "vo_rope-s0: step 20/60, loss 3.2500, 0:00:34 left\n"


def test_an_estimate_leaves_out_what_compiles(clock: list[float], capsys: Capture) -> None:
    """The first step takes a minute, every other step a second."""
    with closing(Progress("vo_rope-s0", 60)) as progress:
        progress.compiling()
        clock.append(160.0)
        progress.step(1, 3.5)
        clock.append(169.0)
        progress.row(ROW | {"val/loss": 3.5})
    compiling, line = capsys.readouterr().err.splitlines()
    assert compiling == "vo_rope-s0: compiling"
    assert line.endswith(", 0:00:50 left")


def test_a_runs_lines_are_kept_in_its_log(tmp_path: Path, capsys: Capture) -> None:
    console.keep_log(tmp_path / "log.txt")
    console.log("a line")
    console.keep("a traceback\n")
    assert (tmp_path / "log.txt").read_text() == "a line\na traceback\n"
    assert capsys.readouterr().err == "a line\n"
    console.keep_log(tmp_path / "nowhere" / "log.txt")
    console.log("another")
    assert (tmp_path / "log.txt").read_text() == "a line\na traceback\n"


def test_a_terminal_gets_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("sys.stderr", terminal)
    with closing(Progress("vo_rope-s0", 60, 0, shown=True)) as progress:
        progress.compiling()
        progress.step(1, 3.5)
        progress.row(ROW | {"val/loss": 3.5})
        monkeypatch.setattr(console, "BAR_SECONDS", 0.0)
        progress.step(60, 3.25)
    drawn = terminal.getvalue()
    assert "compiling" in drawn
    # An evaluation prints a line of its own, and stays on the bar.
    assert "vo_rope-s0: step 10/60, loss 3.2500, val 3.5000, 1,234 tokens/s" in drawn
    assert "step 60/60, loss 3.250, val 3.5000, 0:00:00 left" in drawn

    # The cursor is never left hidden, however the process ends.
    assert drawn.index("\x1b[?25h") < drawn.index("step 10/60")


def test_without_steps_a_line_needs_an_end_for_its_estimate(
    clock: list[float], capsys: Capture
) -> None:
    """Nothing is shown by a rank that shares its terminal with the first."""
    progresses = [Progress("a", 40), Progress("b", None), Progress("c", 40, shown=False)]
    clock.append(120.0)
    for progress in progresses:
        progress.show(10, "10 documents")
        progress.close()
    expected = ["a: 10 documents, 0:01:00 left", "b: 10 documents"]
    assert capsys.readouterr().err.splitlines() == expected


def test_words_that_nobody_can_hear_end_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Standard error is replaced at the first failure, so that Python's exit does not fail."""
    deaf = Deaf()
    monkeypatch.setattr("sys.stderr", deaf)
    console.log("lost")
    assert sys.stderr is not deaf
    console.log("lost")
    sys.stderr.close()
