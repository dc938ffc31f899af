"""Tests of stop signals: a request, its repetition, and signals that are no repetition."""

import os
import signal
from collections.abc import Iterator

import pytest

from rope_exp import signals
from rope_exp.signals import STOP_SIGNALS, StopSignal


class Heard(StopSignal):
    """Records its answers instead of acting on them."""

    def __init__(self) -> None:
        self.answers: list[str] = []
        super().__init__()

    def on_request(self) -> None:
        self.answers.append("request")

    def on_repeat(self) -> None:
        self.answers.append("repeat")

    def get(self, number: signal.Signals) -> list[str]:
        """Send a signal to this process, and return the answers so far."""
        os.kill(os.getpid(), number)
        return self.answers


@pytest.fixture
def heard() -> Iterator[Heard]:
    before = [signal.getsignal(number) for number in STOP_SIGNALS]
    heard = Heard()
    yield heard
    heard.restore()
    assert [signal.getsignal(number) for number in STOP_SIGNALS] == before


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let any later signal be a second one."""
    monkeypatch.setattr(signals, "REPEAT_SECONDS", 0.0)


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_a_burst_of_signals_is_one_request(
    heard: Heard, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    """A scheduler signals every process of a job, so only a later signal is a second one."""
    assert [*map(heard.get, [number] * 3)][-1] == ["request"]
    assert heard.requested
    monkeypatch.setattr(signals, "REPEAT_SECONDS", 0.0)
    assert heard.get(number) == ["request", "repeat"]


def test_each_signal_has_a_burst_of_its_own(heard: Heard, monkeypatch: pytest.MonkeyPatch) -> None:
    """A campaign at its deadline asks its runs to save; a scheduler's signals must not kill."""
    heard.get(signal.SIGALRM)
    monkeypatch.setattr(signals.time, "monotonic", lambda: float("1e9"))
    assert [*map(heard.get, [signal.SIGUSR1] * 2)][-1] == ["request"]


@pytest.mark.usefixtures("at_once")
def test_what_a_dispatcher_passes_on_is_no_second_signal(heard: Heard) -> None:
    """SLURM signals both the rank and the dispatcher, whose own signal may follow seconds later."""
    heard.get(signal.SIGUSR2)
    assert heard.get(signals.PASSED_ON) == ["request"]
    assert heard.get(signal.SIGUSR2) == ["request", "repeat"]
