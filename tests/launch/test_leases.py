"""Tests of the leases that keep two runs from using one GPU, and of launch.max_parallel."""

import itertools
import subprocess
import sys
from pathlib import Path

import pytest
from support.gpus import show_gpus

from rope_exp import ranks, sweep
from rope_exp.compose import resolve, run_config
from rope_exp.config import RunConfig
from rope_exp.jobs import Job, Leases, lease_gpus, release
from rope_exp.ranks import SignalRelay


@pytest.fixture(autouse=True)
def two_gpus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    show_gpus(monkeypatch, 2)
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))


def settled(*overrides: str) -> RunConfig:
    return resolve(run_config(overrides))


def leased(config: RunConfig) -> Leases:
    """Return a run's leases; the GPUs must be free."""
    leases = lease_gpus(config)
    assert leases is not None
    return leases


def test_a_gpu_is_leased_once_and_two_or_none() -> None:
    """A run that waits for two GPUs does not hold the free one, so another run gets it."""
    one = settled()
    both = settled("launch=all_gpus")
    first = leased(one)
    assert lease_gpus(both) is None
    second = leased(one)
    assert {*first, *second} == {"0", "1"}
    assert lease_gpus(one) is None
    assert lease_gpus(settled("launch.device=cpu")) == {}

    release(first)
    release(second)
    taken = leased(both)
    assert list(taken) == ["0", "1"]
    release(taken)


def test_a_lease_lives_as_long_as_a_child_that_holds_it() -> None:
    """The dispatcher may die before its ranks."""
    config = settled("launch=all_gpus")
    leases = leased(config)
    child = subprocess.Popen(
        [sys.executable, "-c", "input()"],
        stdin=subprocess.PIPE,
        pass_fds=[*itertools.chain(*leases.values())],
    )
    release(leases)
    assert lease_gpus(config) is None

    child.communicate(b"\n", timeout=30)
    release(leased(config))


def test_runs_share_a_gpu_if_each_allows_it() -> None:
    """With two runs per GPU, a third one waits, and so does a run that needs a GPU alone."""
    one = settled("launch.num_processes=2")
    two = settled("launch.num_processes=2", "launch.runs_per_gpu=2")
    assert settled("launch.runs_per_gpu=2").launch.max_parallel == 4
    first, second = leased(two), leased(two)
    assert first.keys() == second.keys() == {"0", "1"}
    assert lease_gpus(two) is None
    release(first)
    assert lease_gpus(one) is None
    third = leased(two)
    release(second)
    release(third)
    alone = leased(one)
    assert lease_gpus(two) is None
    release(alone)


@pytest.mark.parametrize(
    ("limits", "num_started"),
    [([2, 2], 2), ([2, 2, 2], 2), ([2, 1], 1), ([1, 2], 1), ([2, 1, 2], 2)],
)
def test_as_many_run_as_each_of_them_allows(
    monkeypatch: pytest.MonkeyPatch, limits: list[int], num_started: int
) -> None:
    config = settled("launch.device=cpu")
    jobs = [Job(config.replace("launch", max_parallel=limit), lock=0) for limit in limits]
    started: list[Job] = []
    monkeypatch.setattr(ranks, "start", started.append)
    with SignalRelay([]) as relay:
        sweep._start_waiting(jobs, relay)
    assert len(started) == num_started
