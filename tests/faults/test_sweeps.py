"""Tests of sweeps: two dispatchers at once, and one that is stopped."""

import signal
from pathlib import Path

import pytest
from support.runs import num_rows, processes_of, start, starts, stopped_by, train, wait_for


@pytest.fixture
def group(tmp_path: Path) -> Path:
    """Return the folder of a group that no other test has; it identifies the processes."""
    return Path("results/runs") / tmp_path.name


@pytest.fixture
def sweep(tiny_overrides: list[str], group: Path) -> list[str]:
    """Return the beginning of a sweep's command line."""
    words = [word for word in tiny_overrides if not word.startswith("run.dir=")]
    return ["-m", *words, f"run.group={group.name}"]


@pytest.mark.torture
def test_two_sweeps_at_once_run_every_run_once(
    tmp_path: Path, group: Path, sweep: list[str]
) -> None:
    command = [*sweep, "pe=nope,vo_rope,qk_rope,k_rope", "train.num_steps=30"]
    both = [start(*command, cwd=tmp_path) for _ in range(2)]
    for process in both:
        _, stderr = process.communicate(timeout=120)
        assert process.returncode == 0, stderr
    runs = tmp_path / group
    assert [*starts(runs).values()] == [1, 1, 1, 1]


@pytest.mark.torture
def test_a_sweep_that_is_stopped_ends_every_run(
    tmp_path: Path, group: Path, sweep: list[str]
) -> None:
    """A rerun finishes all runs, including one that had not begun."""
    command = [*sweep, "pe=nope,vo_rope,qk_rope", "launch.max_parallel=2"]
    command += ["train.num_steps=150", "train.save_every=50"]
    runs = tmp_path / group
    process = start(*command, cwd=tmp_path)
    wait_for(lambda: sum(num_rows(folder) > 5 for folder in runs.glob("*/seed0")) == 2, process)
    stderr = stopped_by(process, signal.SIGUSR1)
    # The third run had not begun, so it is not reported as stopped.
    assert stderr.count("-s0: stopped") == 2
    assert not processes_of(group)
    assert train(*command, cwd=tmp_path).returncode == 0
    assert len(starts(runs)) == 3
