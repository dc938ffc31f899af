"""Tests of how runs start beside each other, and end by the exit codes and signals of ranks."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support.command import assert_refused, command
from support.runs import until

from rope_exp import sweep
from rope_exp.compose import resolve
from rope_exp.config import RunConfig
from rope_exp.errors import EXIT_NO_PORT, ConfigError, run_command
from rope_exp.machine import free_port
from rope_exp.sweep import DispatchedRun


@pytest.fixture
def run(tiny: Callable[..., RunConfig]) -> DispatchedRun:
    config = resolve(tiny("launch.device=cpu"))
    config.folder.mkdir()
    return DispatchedRun(config)


def run_shells(run: DispatchedRun, *scripts: str) -> None:
    """Start shells as the run's ranks, and poll them until all have ended."""
    run.ranks += [subprocess.Popen(["sh", "-c", script], cwd=run.folder) for script in scripts]

    def have_ended() -> bool:
        run.poll()
        return run.exit_code is not None

    until(have_ended)


@pytest.mark.parametrize(
    ("codes", "exit_code", "status"),
    [
        ((0, 0), 0, "finished"),
        ((3, 3), 3, "diverged"),
        ((75, 75), 75, "stopped"),
        ((0, 1), 1, "failed"),
        ((2, 1), 2, "failed"),
        ((134, 0), 1, "failed"),
    ],
)
def test_exit_codes_of_ranks_become_one_of_the_run(
    run: DispatchedRun, codes: tuple[int, ...], exit_code: int, status: str
) -> None:
    """If any rank exits with 2 (a refusal), the run does; every other failure gives 1."""
    run_shells(run, *(f"exit {code}" for code in codes))
    assert run.exit_code == exit_code
    assert run.status == status


def test_a_killed_rank_is_the_reason_of_the_failure(run: DispatchedRun) -> None:
    """Only the kernel or a person kills a rank; the others then fail because it is gone."""
    run_shells(run, "exit 1", "sleep 0.2; kill -9 $$")
    assert run.reason.startswith("process 1 of 2 was ended by SIGKILL (the kernel does that")
    assert run.exit_code == 1


def test_a_rank_may_end_by_a_signal_without_a_name(run: DispatchedRun) -> None:
    """Python names only the first and the last real-time signal."""
    run_shells(run, "kill -35 $$")
    assert run.reason == "process 0 of 1 was ended by signal 35"
    assert run.exit_code == 1


def test_a_run_whose_port_was_taken_waits_and_chooses_another(
    monkeypatch: pytest.MonkeyPatch, run: DispatchedRun
) -> None:
    """The ranks that another process at that port kept waiting are ended first."""
    monkeypatch.setattr(sweep, "GRACE_SECONDS", 0.2)
    processes = []

    def is_over() -> bool:
        run.poll()
        return run.status != "running"

    for _ in range(sweep.PORT_ATTEMPTS - 1):
        run.num_ports += 1
        scripts = (f"exit {EXIT_NO_PORT}", "exec sleep 60")
        run.ranks = [subprocess.Popen(["sh", "-c", script]) for script in scripts]
        processes += run.ranks
        until(is_over)
        assert run.status == "waiting"
        assert run.reason == ""
        assert run.was_killed is False
    assert None not in [process.poll() for process in processes]

    # Nobody has a port for it.
    run.num_ports += 1
    run_shells(run, f"exit {EXIT_NO_PORT}")
    assert run.exit_code == 1
    assert "took each of 5 ports" in run.reason


def test_ranks_meet_at_another_port_than_a_taken_one(
    monkeypatch: pytest.MonkeyPatch, tiny: Callable[..., RunConfig]
) -> None:
    config = tiny("launch.device=cpu", "launch.num_processes=2", "pe=nope")
    with socket.create_server(("localhost", 0)) as other:
        taken = other.getsockname()[1]
        ports = iter([taken, free_port()])
        monkeypatch.setattr(sweep, "free_port", lambda: next(ports))
        code, [run] = sweep.dispatch([config], ["mine"])
    assert code == 0
    assert run.status == "finished"
    assert run.num_ports == 2


def test_a_run_that_cannot_lease_fails_alone(
    monkeypatch: pytest.MonkeyPatch, run: DispatchedRun
) -> None:
    """Such as where the temporary folder is somebody else's, or gone."""
    failing = DispatchedRun(
        run.config.replace("launch", device="cuda"), lock=os.open("/dev/null", 0)
    )
    other = DispatchedRun(run.config, lock=0)

    def lease(*_: object) -> dict[str, list[int]]:
        raise ConfigError("TMPDIR", "/tmp", "must be ours")

    monkeypatch.setattr("rope_exp.gpu_leases.lease", lease)
    monkeypatch.setattr(
        DispatchedRun, "start", lambda run, **_: run.ranks.append(subprocess.Popen(["true"]))
    )
    sweep._start_waiting([failing, other])
    other.ranks[0].wait()
    assert failing.status == "failed"
    assert failing.reason == "TMPDIR=/tmp: must be ours"
    assert failing.lock == -1
    assert other.status == "running"


@pytest.mark.parametrize("words", [[], ["folder"]])
def test_a_rank_by_hand_is_one_sentence(words: list[str], tmp_path: Path) -> None:
    done = command(*words, cwd=tmp_path, script="-m rope_exp.worker")
    assert_refused(done, "rope-exp train")


@pytest.mark.parametrize(
    ("text", "is_lost"),
    [
        ("[/x/gloo/transport/tcp/pair.cc:553] Connection closed by peer [::1]:4", True),
        ("[/x/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 8000ms for recv", True),
        ("[enforce fail at /x/gloo/transport/tcp/pair.cc:446] op.preamble.length <= 4", False),
        ("ProcessGroupGloo: no device for gloo", False),
    ],
)
def test_only_a_lost_connection_of_gloo_loses_its_traceback(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], text: str, is_lost: bool
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")

    def rank() -> int:
        raise RuntimeError(text)

    if is_lost:
        assert run_command(rank) == 1
        assert "lost the other processes" in capfd.readouterr().err
    else:
        with pytest.raises(RuntimeError):
            run_command(rank)


@pytest.mark.parametrize("waiting", [(), ("exec sleep 60",)])
def test_a_failed_rank_says_it_all_and_the_others_are_ended(
    monkeypatch: pytest.MonkeyPatch, run: DispatchedRun, waiting: tuple[str, ...]
) -> None:
    """The dispatcher kills them itself, so this is no reason for the run's failure."""
    monkeypatch.setattr(sweep, "GRACE_SECONDS", 0.2)
    run_shells(run, *waiting, "exit 1")
    assert run.exit_code == 1
    assert run.reason == ""


def start_shell(run: DispatchedRun, script: str) -> None:
    """Start a shell as the run's only rank, and wait until it has run `script`."""
    script = f"{script}; touch up; while :; do sleep 0.05; done"
    run.ranks.append(subprocess.Popen(["sh", "-c", script], cwd=run.folder))
    until((run.folder / "up").exists)


def test_a_handler_that_raises_waits_for_ranks_to_save(run: DispatchedRun) -> None:
    """submitit's handler raises in the dispatcher ahead of the job's time limit."""
    start_shell(run, "trap 'sleep 0.3; touch saved; exit 75' INT")
    with pytest.raises(SystemExit):
        sweep.run_until_done([run], [lambda runs: sys.exit()])
    assert (run.folder / "saved").exists()


def test_a_second_signal_ends_ranks_that_do_not_hear(
    monkeypatch: pytest.MonkeyPatch, run: DispatchedRun
) -> None:
    monkeypatch.setattr("rope_exp.signals.REPEAT_SECONDS", 0.0)
    start_shell(run, "trap '' INT")
    killed = []

    def signal_again(ended: object) -> None:
        killed.append(run.was_killed)
        if len(killed) in (1, 4):
            os.kill(os.getpid(), signal.SIGTERM)

    sweep.run_until_done([run], [signal_again])
    assert killed[:4] == [False] * 4
    assert run.ranks[0].returncode == -signal.SIGKILL
    assert run.exit_code == 75
    assert run.status == "stopped"


@pytest.mark.parametrize(
    ("limits", "num_started"),
    [([2, 2], 2), ([2, 2, 2], 2), ([2, 1], 1), ([1, 2], 1), ([2, 1, 2], 2)],
)
def test_as_many_run_as_each_of_them_allows(
    monkeypatch: pytest.MonkeyPatch, run: DispatchedRun, limits: list[int], num_started: int
) -> None:
    runs = [
        DispatchedRun(run.config.replace("launch", max_parallel=limit), lock=0) for limit in limits
    ]
    rank = subprocess.Popen(["true"])
    monkeypatch.setattr(DispatchedRun, "start", lambda run, **_: run.ranks.append(rank))
    sweep._start_waiting(runs)
    rank.wait()
    assert sum(each.status == "running" for each in runs) == num_started
