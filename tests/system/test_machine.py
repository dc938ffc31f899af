"""Tests of the detection of GPUs, the environment of children, and the recorded commit."""

import os
import subprocess
from pathlib import Path
from typing import Literal

import pytest
from support.command import write
from support.gpus import show_gpus
from support.refused import refused

from rope_exp import machine
from rope_exp.errors import ConfigError
from rope_exp.machine import ROOT, child_environment


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        ("", []),
        ("-1", []),
        ("3", ["3"]),
        ("0, 2", ["0", "2"]),
        ("2,7,1", ["2"]),
        ("GPU-ab,GPU-cd", ["GPU-ab", "GPU-cd"]),
    ],
)
def test_the_environment_limits_the_gpus(
    monkeypatch: pytest.MonkeyPatch, visible: str, expected: list[str]
) -> None:
    """Entries after an unknown index are hidden, as in CUDA."""
    show_gpus(monkeypatch, 4)
    assert machine.gpus() == ["0", "1", "2", "3"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert machine.gpus() == expected


def test_a_child_finds_a_checkout_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The checkout comes before the user's own entries; an installed package needs none."""
    monkeypatch.setenv("PYTHONPATH", "/of/the/user")
    environment = child_environment(RANK="1")
    assert environment["PYTHONPATH"] == f"{ROOT}{os.pathsep}/of/the/user"
    assert environment["RANK"] == "1"

    # Only an installed package holds its configs.
    (tmp_path / "configs").mkdir()
    monkeypatch.setattr(machine, "PACKAGE", tmp_path)
    assert child_environment()["PYTHONPATH"] == "/of/the/user"


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a repository that tracks rope_exp/__init__.py, and set it as machine.ROOT."""
    write(tmp_path / "rope_exp" / "__init__.py", "")
    write(tmp_path / "README.md", "")
    commit = ["-c", "user.name=a", "-c", "user.email=b@c", "commit", "-qm", "one"]
    for words in (["init", "-q"], ["add", "."], commit):
        subprocess.run(["git", "-C", str(tmp_path), *words], check=True)
    monkeypatch.setattr(machine, "ROOT", tmp_path)
    return tmp_path


def test_only_code_makes_a_checkout_dirty(checkout: Path) -> None:
    found = machine.git_state()
    assert found is not None
    assert len(found["commit"]) == 40
    assert found["dirty"] is False

    write(checkout / "results" / "table.md", "a sweep's own output")
    write(checkout / "README.md", "prose")
    assert machine.git_state() == found
    write(checkout / "configs" / "pe" / "mine.yaml", "name: mine")
    assert machine.git_state() == found | {"dirty": True}
    (checkout / "configs" / "pe" / "mine.yaml").unlink()
    # Without its index, git tracks no file.
    (checkout / ".git" / "index").unlink()
    assert machine.git_state() == found | {"dirty": True}


def test_a_campaigns_own_configs_are_code(checkout: Path) -> None:
    """A record names the commit that holds its campaign, wherever in the checkout that lies."""
    mine = checkout / "mine"
    write(mine / "campaign" / "name.yaml", "about: it")
    found = machine.git_state()
    assert found is not None
    assert found["dirty"] is False
    assert machine.git_state(mine) == found | {"dirty": True}
    assert machine.git_state(checkout.parent) == found


def test_an_installed_copy_is_not_of_the_repository_around_it(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This holds whether or not the project around it tracks the installed copy."""
    write(checkout / "venv" / "rope_exp" / "__init__.py", "")
    monkeypatch.setattr(machine, "ROOT", checkout / "venv")
    assert machine.git_state() is None
    subprocess.run(["git", "-C", str(checkout), "add", "venv"], check=True)
    assert machine.git_state() is None


@pytest.mark.parametrize("has_git", [True, False])
def test_a_checkout_of_which_git_says_nothing_is_refused(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, has_git: bool
) -> None:
    """Its code is unknown, so campaigns are refused. A run still trains, and records no commit."""
    (checkout / ".git" / "index").write_bytes(b"nothing")
    why = "index file"
    if not has_git:
        monkeypatch.setenv("PATH", str(checkout))
        why = "No such file or directory: 'git'"
    with refused(f"git: cannot say which commit {checkout} is at: ", why, by=ConfigError):
        machine.git_state()
    assert machine.machine_environment("cpu")["git"] is None


def test_the_environment_names_no_other_repository(
    checkout: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = machine.git_state()
    other = tmp_path_factory.mktemp("other")
    subprocess.run(["git", "init", "-q", str(other)], check=True)
    monkeypatch.setenv("GIT_DIR", str(other / ".git"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(other / "nothing"))
    assert machine.git_state() == found
    assert found is not None


def write_idle(path: Path, first: int, second: int) -> None:
    """Write the kernel's counts of two cores, and of one that this process may not use."""
    lines = [
        "cpu  1 1 1 9 9 1",
        f"cpu0 5 0 5 {first} 0 1",
        f"cpu1 5 0 5 0 {second} 1",
        "cpu7 0 0 0 9 9",
    ]
    path.write_text("\n".join(lines))


@pytest.mark.parametrize(
    ("second", "spin", "told"),
    [
        (50, "25000", ""),
        (
            0,
            "1000",
            "other work keeps 1.0 cores busy; waiting threads make room for it",
        ),
    ],
)
def test_waiting_threads_make_room_for_other_work(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    second: int,
    spin: str,
    told: str,
) -> None:
    """In half a second a core idles for 50 ticks of 10 ms; the other does, or has work.

    Beside its own runs a command does not look again.
    """
    stat = tmp_path / "stat"
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds
        write_idle(stat, 1050, 1000 + second)

    write_idle(stat, 1000, 1000)
    monkeypatch.setattr(machine, "CPU_TIMES", stat)
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1})
    monkeypatch.setattr("os.sysconf", lambda name: 100)
    monkeypatch.setattr("time.sleep", sleep)
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    environment: dict[str, str] = {}
    machine.set_waiting(environment, num_threads=2, looks=True)
    assert environment == {"GOMP_SPINCOUNT": spin}
    assert capsys.readouterr().err.endswith(f"{told}\n" if told else "")
    assert now == [0.5]

    beside: dict[str, str] = {}
    machine.set_waiting(beside, num_threads=2, looks=False)
    assert beside == environment
    assert now == [0.5]
    machine.set_waiting({}, num_threads=2, looks=True)
    assert now == [1.0]


@pytest.mark.parametrize(
    ("given", "num_threads"),
    [
        ({"GOMP_SPINCOUNT": "7"}, 2),
        ({"OMP_WAIT_POLICY": "PASSIVE"}, 2),
        ({}, 1),
        ({"OMP_NUM_THREADS": "two"}, 1),
        ({"OMP_NUM_THREADS": "1,2"}, "auto"),
    ],
)
def test_a_user_says_how_threads_wait(
    given: dict[str, str], num_threads: int | Literal["auto"]
) -> None:
    """One thread waits for none; the key goes before the variable, which may then be anything."""
    environment = dict(given)
    machine.set_waiting(environment, num_threads, looks=True)
    assert environment == given
