"""Progress that a person reads: lines in a log, a bar on a terminal."""

import errno
import io
import sys
from contextlib import closing

import pytest

from rope_exp.system import console
from rope_exp.system.console import Progress, time_left

Capture = pytest.CaptureFixture[str]
ROW = {"step": 10, "train/loss": 3.25, "tokens_per_s": 1234.0}


class Terminal(io.StringIO):
    """A standard error that says that it is a terminal."""

    def isatty(self) -> bool:
        return True


class Deaf(io.StringIO):
    """A standard error on a full disk."""

    def write(self, text: str) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A monotonic clock that stands at the list's last number."""
    moments = [100.0]
    monkeypatch.setattr(console.time, "monotonic", lambda: moments[-1])
    return moments


def test_time_left_is_in_proportion_to_what_is_done() -> None:
    assert time_left(30, 10, 50) == "0:02:00 left"
    assert time_left(30, 0, 50) == "no estimate yet"


def test_a_log_gets_a_line_every_so_often(clock: list[float], capsys: Capture) -> None:
    """Rows in quick succession are one line, but for an evaluation, which is always one."""
    with closing(Progress("vo_rope-s0", 60, 5, shown=True)) as progress:
        clock.append(101.0)
        progress.step(10, 3.25)
        progress.row(ROW)
        assert capsys.readouterr().err == ""

        progress.row(ROW | {"val/loss": 3.5})
        line = "vo_rope-s0: step 10/60, loss 3.2500, val 3.5000, 1,234 tokens/s, 0:00:10 left\n"
        assert capsys.readouterr().err == line

        clock.append(112.0)
        progress.row(ROW | {"step": 20, "tokens_per_s": None})
        assert capsys.readouterr().err == "vo_rope-s0: step 20/60, loss 3.2500, 0:00:32 left\n"


def test_a_rank_that_is_not_shown_says_nothing(capsys: Capture) -> None:
    with closing(Progress("vo_rope-s0", 60, 0, shown=False)) as progress:
        progress.row(ROW | {"val/loss": 3.5})
    assert capsys.readouterr().err == ""


def test_a_terminal_gets_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("sys.stderr", terminal)
    with closing(Progress("vo_rope-s0", 60, 0, shown=True)) as progress:
        progress.step(60, 3.25)
        progress.row(ROW | {"val/loss": 3.5})
    drawn = terminal.getvalue()
    assert "step 60/60, loss 3.250, 0:00:00 left" in drawn
    assert "val" not in drawn

    # The cursor is never left hidden, however the process ends.
    assert drawn.index("\x1b[?25h") < drawn.index("step 60/60")


def test_what_has_no_known_end_has_no_estimate(clock: list[float], capsys: Capture) -> None:
    known = Progress("data", 40)
    unknown = Progress("data", None)
    clock.append(120.0)
    for progress in (known, unknown):
        progress.show(10, "10 documents")
        progress.close()
    said = ["data: 10 documents, 0:01:00 left", "data: 10 documents"]
    assert capsys.readouterr().err.splitlines() == said


def test_words_that_nobody_can_hear_end_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Standard error is given up at the first failure, so that Python's end does not fail."""
    deaf = Deaf()
    monkeypatch.setattr("sys.stderr", deaf)
    console.log("lost")
    assert sys.stderr is not deaf
    console.log("lost")
    sys.stderr.close()
