"""Tests of the leases that keep two runs from using one GPU."""

import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.configs import composed
from support.gpus import show_gpus
from support.refused import refused

from rope_exp import gpu_leases
from rope_exp.compose import resolve
from rope_exp.files import try_lock
from rope_exp.sweep import DispatchedRun


@pytest.fixture(autouse=True)
def two_gpus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    show_gpus(monkeypatch, 2)
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))


def waiting(*overrides: str) -> DispatchedRun:
    """Return a run that waits for its GPUs."""
    return DispatchedRun(resolve(composed(*overrides)))


def leased(*overrides: str) -> DispatchedRun:
    """Return a run that has its GPUs, which must be free."""
    run = waiting(*overrides)
    assert run.lease_gpus()
    return run


def test_a_gpu_is_leased_once_and_two_or_none() -> None:
    """A run that waits for two GPUs does not hold the free one, so another run gets it."""
    first = leased()
    both = waiting("launch=all_gpus")
    assert not both.lease_gpus()
    second = leased()
    assert {*first.leases, *second.leases} == {"0", "1"}
    assert not waiting().lease_gpus()
    assert leased("launch.device=cpu").leases == {}

    first.release_gpus()
    second.release_gpus()
    assert both.lease_gpus()
    assert both.lease_gpus()
    assert list(both.leases) == ["0", "1"]
    both.release_gpus()


def test_a_lease_lives_as_long_as_a_child_that_holds_it() -> None:
    """The dispatcher may die before its ranks."""
    run = leased("launch=all_gpus")
    child = subprocess.Popen(
        [sys.executable, "-c", "input()"],
        stdin=subprocess.PIPE,
        pass_fds=[*itertools.chain(*run.leases.values())],
    )
    run.release_gpus()
    assert not run.lease_gpus()

    child.communicate(b"\n", timeout=30)
    leased("launch=all_gpus").release_gpus()


def test_runs_share_a_gpu_if_each_allows_it() -> None:
    """With two runs per GPU, a third one waits, and so does a run that needs a GPU alone."""
    one = ["launch.num_processes=2"]
    two = [*one, "launch.runs_per_gpu=2"]
    assert waiting("launch.runs_per_gpu=2").config.launch.max_parallel == 4
    first, second = leased(*two), leased(*two)
    assert first.leases.keys() == {"0", "1"}
    assert second.leases.keys() == {"0", "1"}
    assert not waiting(*two).lease_gpus()
    first.release_gpus()
    assert not waiting(*one).lease_gpus()
    third = leased(*two)
    second.release_gpus()
    third.release_gpus()
    alone = leased(*one)
    assert not waiting(*two).lease_gpus()
    alone.release_gpus()


def test_a_lease_that_fails_holds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """If no file of a place can be made, the GPU is free again for others."""

    def lock(path: Path, *, shared: bool = False) -> int | None:
        if path.name == "0.0.lock":
            raise OSError("no space left")
        return try_lock(path, shared=shared)

    monkeypatch.setattr(gpu_leases, "try_lock", lock)
    with pytest.raises(OSError, match="no space left"):
        waiting("launch.runs_per_gpu=2").lease_gpus()
    alone = leased("launch.num_processes=2")
    alone.release_gpus()


def test_a_folder_that_others_could_change_is_refused(tmp_path: Path) -> None:
    """Anybody may have made it in the shared temporary folder, and put links there."""
    run = waiting()
    folder = tmp_path / f"rope_exp-gpus-{os.getuid()}"
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    folder.symlink_to(elsewhere)
    with refused("TMPDIR", folder.name, "only you can write to"):
        run.lease_gpus()
    assert list(elsewhere.iterdir()) == []

    folder.unlink()
    folder.mkdir()
    folder.chmod(0o777)
    with refused("TMPDIR", folder.name, "only you can write to"):
        run.lease_gpus()
    assert list(folder.iterdir()) == []


def test_nobody_else_can_write_to_the_leases(tmp_path: Path) -> None:
    run = leased()
    [folder] = tmp_path.iterdir()
    assert folder.stat().st_mode & 0o777 == 0o700
    run.release_gpus()
