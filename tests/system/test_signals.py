"""Tests of stop signals: a request, its repetition, and signals that are no repetition."""

import os
import signal

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


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_a_burst_of_signals_is_one_request(
    monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    """A scheduler signals every process of a job, so only a later signal is a second one."""
    before = signal.getsignal(number)
    heard = Heard()
    try:
        for _ in range(3):
            os.kill(os.getpid(), number)
        assert heard.requested
        assert heard.answers == ["request"]

        monkeypatch.setattr(signals, "REPEAT_SECONDS", 0.0)
        os.kill(os.getpid(), number)
        assert heard.answers == ["request", "repeat"]
    finally:
        heard.restore()
    assert signal.getsignal(number) is before


def test_what_a_dispatcher_passes_on_is_no_second_signal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """SLURM signals both the rank and the dispatcher, whose own signal may follow seconds later."""
    monkeypatch.setattr(signals, "REPEAT_SECONDS", 0.0)
    heard = Heard()
    try:
        for number in (signal.SIGUSR2, signals.PASSED_ON):
            os.kill(os.getpid(), number)
        assert heard.answers == ["request"]
        os.kill(os.getpid(), signal.SIGUSR2)
        assert heard.answers == ["request", "repeat"]
    finally:
        heard.restore()


class Interrupted(Heard):
    """Receives a signal in the moment in which `requested` becomes true."""

    def __setattr__(self, name: str, value: object) -> None:
        super().__setattr__(name, value)
        if (name, value) == ("requested", True) and not self.answers:
            os.kill(os.getpid(), signal.SIGTERM)


def test_a_signal_within_a_request_is_no_second_one() -> None:
    """A campaign's deadline requests a stop without a signal, and one may arrive meanwhile."""
    heard = Interrupted()
    try:
        heard.request()
        assert heard.answers == ["request"]
    finally:
        heard.restore()


def test_the_first_signal_after_a_request_repeats_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A campaign at its deadline asks its runs to save; a person's Ctrl-C then must not kill."""
    monkeypatch.setattr(signals, "REPEAT_SECONDS", 0.0)
    heard = Heard()
    heard.by_kind = False
    try:
        heard.request()
        os.kill(os.getpid(), signal.SIGINT)
        assert heard.answers == ["request"]
        os.kill(os.getpid(), signal.SIGTERM)
        assert heard.answers == ["request", "repeat"]
    finally:
        heard.restore()
