"""Tests of sweeps: broken runs, two dispatchers, and one that is stopped."""

import signal
from pathlib import Path

import pytest
from support.runs import num_rows, processes_of, sabotage, start, stopped_by, train, wait_for

from rope_exp.files import read_json


@pytest.fixture
def group(tmp_path: Path) -> Path:
    """Return the folder of a group that no other test has; it identifies the processes."""
    return Path("results/runs") / tmp_path.name


@pytest.fixture
def sweep(tiny_overrides: list[str], group: Path) -> list[str]:
    """Return the beginning of a sweep's command line."""
    words = [word for word in tiny_overrides if not word.startswith("run.dir=")]
    return ["-m", *words, f"run.group={group.name}"]


def starts(runs: Path) -> dict[str, int]:
    """Return how often each run of a group that is done was started, by variant."""
    folders = [path.parent for path in runs.glob("*/seed0/result.json")]
    return {path.parent.name: len(read_json(path / "env.json")["started"]) for path in folders}


def test_broken_runs_are_named_and_rerun_alone(
    tmp_path: Path, group: Path, sweep: list[str]
) -> None:
    """The other run finishes, and a rerun starts only the broken ones."""
    command = [*sweep, "pe=vo_rope,qk_rope", "train.num_steps=30"]
    runs = tmp_path / group
    done = train(*command, cwd=tmp_path, **sabotage(step=5, vo_rope="memory"))
    assert done.returncode == 1
    log = "vo_rope/seed0/log.txt"
    assert f"vo_rope-s0: failed (exit code 1), see {group}/{log}" in done.stderr
    assert "allocate memory" in (runs / log).read_text()
    assert starts(runs) == {"qk_rope": 1}

    assert train(*command, cwd=tmp_path).returncode == 0
    assert starts(runs) == {"qk_rope": 1, "vo_rope": 2}


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
