"""Tests of stop signals: a request, its repetition, and signals that are no repetition."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from rope_exp import signals
from rope_exp.errors import EXIT_USAGE
from rope_exp.signals import STOP_SIGNALS, StopSignal


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> Iterator[StopSignal]:
    """Return what a rank has heard; it does not exit at a second signal."""
    monkeypatch.setattr("os._exit", lambda code: None)
    before = [signal.getsignal(number) for number in STOP_SIGNALS]
    heard = StopSignal()
    assert heard.requested is False
    assert heard.repeated is False
    yield heard
    heard.restore()
    assert [signal.getsignal(number) for number in STOP_SIGNALS] == before


def test_under_nohup_no_closed_terminal_stops_a_run() -> None:
    code = "import signal, rope_exp.signals as ours; assert signal.SIGHUP not in ours.STOP_SIGNALS"
    subprocess.run(["nohup", sys.executable, "-c", code], check=True, capture_output=True)


def send(*numbers: signal.Signals) -> None:
    for number in numbers:
        os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_a_burst_of_signals_is_one_request(
    heard: StopSignal, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    """A scheduler signals every process of a job, so only a later signal is a second one."""
    send(number, number, number)
    assert heard.requested is True
    assert heard.repeated is False
    monkeypatch.setattr(signals, "REPEAT_SECONDS", 0.0)
    send(number)
    assert heard.repeated


def test_each_signal_has_a_burst_of_its_own(
    heard: StopSignal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A campaign at its deadline asks its runs to save; a scheduler's signals must not kill."""
    send(signal.SIGALRM)
    monkeypatch.setattr("time.monotonic", lambda: float("1e9"))
    send(signal.SIGUSR1, signal.SIGUSR1)
    assert heard.requested is True
    assert heard.repeated is False


def test_what_a_dispatcher_passes_on_is_no_second_signal(
    heard: StopSignal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SLURM signals both the rank and the dispatcher, whose own signal may follow seconds later."""
    monkeypatch.setattr(signals, "REPEAT_SECONDS", 0.0)
    send(signal.SIGUSR2, signals.PASSED_ON)
    assert heard.requested is True
    assert heard.repeated is False
    send(signal.SIGUSR2)
    assert heard.repeated


# Python takes handlers away before it deletes objects: this signal comes in between.
LATE = """
import os, pathlib, signal, sys
from rope_exp import folder, signals, worker
class Late:
    def __del__(self, kill=os.kill, words=(os.getpid(), signal.SIGINT)):
        kill(*words)
late = Late()
none = pathlib.Path("none")
sys.exit(worker.run_rank(lambda: folder.read_config(none), None, signals.StopSignal()))
"""


def test_a_rank_that_is_done_exits_with_its_own_code() -> None:
    assert subprocess.run([sys.executable, "-c", LATE]).returncode == EXIT_USAGE
