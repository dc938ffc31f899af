"""Tests of the leases that keep two runs from using one GPU."""

import itertools
import subprocess
import sys
from pathlib import Path

import pytest
from support.gpus import show_gpus

from rope_exp.compose import run_config
from rope_exp.config import RunConfig
from rope_exp.jobs import close, lease_gpus
from rope_exp.settle import resolve


@pytest.fixture(autouse=True)
def two_gpus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    show_gpus(monkeypatch, 2)
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))


def settled(*overrides: str) -> RunConfig:
    return resolve(run_config(overrides))


def leased(config: RunConfig) -> dict[str, list[int]]:
    """Return a run's leases; the GPUs must be free."""
    leases = lease_gpus(config)
    assert leases is not None
    return leases


def release(leases: dict[str, list[int]]) -> None:
    for descriptors in leases.values():
        close(descriptors)


def test_a_gpu_is_leased_once_until_it_is_given_back() -> None:
    config = settled()
    first = leased(config)
    second = leased(config)
    assert {*first, *second} == {"0", "1"}
    assert lease_gpus(config) is None

    release(first)
    third = leased(config)
    assert third.keys() == first.keys()
    release(second)
    release(third)
    assert lease_gpus(settled("launch.device=cpu")) == {}


def test_a_run_that_waits_for_two_gpus_holds_none() -> None:
    one = settled()
    both = settled("launch=all_gpus")
    first = leased(one)
    assert lease_gpus(both) is None

    # The waiting run does not hold the free GPU, so another run gets it.
    second = leased(one)
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
