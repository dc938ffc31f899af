"""Shared fixtures: small configs composed from the real YAMLs, and real text if available."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from support.configs import TINY, composed

from rope_exp.config import RunConfig
from rope_exp.files import lock

# Examples have no time limit: a shared machine can pause at any moment.
settings.register_profile("shared", deadline=None)
settings.load_profile("shared")


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Restore the environment after each test: a command may set wandb's mode.

    Nor is anything that this process writes synced to disk: that is most of the time of a save.
    """
    monkeypatch.setattr("os.fsync", lambda descriptor: None)
    found = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(found)


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the inodes of the files and folders that this process syncs to disk, in order."""
    inodes: list[int] = []
    monkeypatch.setattr("os.fsync", lambda descriptor: inodes.append(os.fstat(descriptor).st_ino))
    return inodes


@pytest.fixture
def make(tiny: Callable[..., RunConfig], tmp_path: Path) -> Callable[..., Any]:
    """Return `make`: `make("name", "train.num_steps=9")` is a trainer in the folder `name`."""
    from support.trainers import build_trainer

    def build(name: str, *overrides: str, **changes: Any) -> Any:
        return build_trainer(tiny("launch.device=cpu", *overrides), tmp_path / name, **changes)

    return build


@pytest.fixture(scope="session")
def once(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Return `once`: `once("name", make)` is a folder that all workers share, made by one."""

    def once(name: str, make: Callable[[Path], object] = lambda folder: None) -> Path:
        base = tmp_path_factory.getbasetemp()
        folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / name
        with os.fdopen(lock(folder.with_suffix(".lock"))):
            if not (made := folder.with_suffix(".made")).exists():
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir()
                make(folder)
                made.touch()
        return folder

    return once


@pytest.fixture(scope="session")
def corpus(once: Callable[..., Path]) -> Path:
    def make(folder: Path) -> None:
        for number in range(40):
            words = " ".join(f"{word} {number * word % 7}" for word in range(60))
            path = folder / f"document{number:02d}.txt"
            path.write_text(f"Document {number}. {words}.\n", encoding="utf-8")

    return once("corpus", make)


@pytest.fixture(scope="session")
def cache(once: Callable[..., Path]) -> Path:
    return once("cache")


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make an empty folder the cache of prepared corpora, and return it."""
    monkeypatch.setenv("ROPE_EXP_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="session")
def whole(once: Callable[..., Path], corpus: Path, cache: Path) -> tuple[Path, list[str]]:
    """Return the folder of an uninterrupted run of 60 steps, and its command without run.dir."""
    from support.runs import train

    command = [*TINY, f"data.path={corpus}", "data.holdout_fraction=0.2", f"data.cache_dir={cache}"]
    command += ["train.num_steps=60", "train.save_every=10", "train.eval_every=30", "pe=vo_rope"]

    def make(folder: Path) -> None:
        done = train(*command, f"run.dir={folder / 'run'}", cwd=folder)
        assert done.returncode == 0, done.stderr

    return once("whole", make) / "run", command


@pytest.fixture(scope="session")
def recorded(once: Callable[..., Path], corpus: Path, cache: Path) -> Path:
    """Return the folder of an undisturbed campaign of two runs; no test changes it."""
    from support.campaigns import make_home, run_campaign_command

    def make(folder: Path) -> None:
        make_home(folder, corpus)
        done = run_campaign_command(folder, ROPE_EXP_CACHE=str(cache))
        assert done.returncode == 0, done.stderr

    return once("recorded", make)


@pytest.fixture
def home(tmp_path: Path, corpus: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder in which a campaign starts: like `recorded`, but before the campaign."""
    from support.campaigns import PYTHONPATH, make_home

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", PYTHONPATH)
    monkeypatch.setenv("ROPE_EXP_CACHE", str(cache))
    monkeypatch.setattr("rope_exp.campaign.campaign.git_state", lambda _: None)
    return make_home(tmp_path, corpus)


@pytest.fixture
def clone(home: Path, recorded: Path) -> Path:
    """Return a fresh clone of the project in which the campaign ran: it has only the records."""
    from support.campaigns import RECORDS

    shutil.copytree(recorded / RECORDS, home / RECORDS)
    return home


@pytest.fixture(scope="session")
def broken_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return faults/files.c, compiled: if preloaded, it breaks the n-th file operation."""
    compiler = shutil.which("cc")
    if compiler is None or sys.platform != "linux":
        pytest.skip("breaking file operations takes a C compiler and Linux's LD_PRELOAD")
    library = tmp_path_factory.mktemp("faults") / "files.so"
    source = Path(__file__).parent / "faults" / "files.c"
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-O1", "-Wall", "-o", library, source, "-ldl"], check=True
    )
    return library


@pytest.fixture
def tiny_overrides(corpus: Path, cache: Path, tmp_path: Path) -> list[str]:
    """Return the overrides of a run that takes seconds, on the small corpus."""
    return [
        *TINY,
        f"data.path={corpus}",
        "data.holdout_fraction=0.2",
        f"data.cache_dir={cache}",
        f"run.dir={tmp_path / 'run'}",
    ]


@pytest.fixture
def tiny(tiny_overrides: list[str], tmp_path: Path) -> Callable[..., RunConfig]:
    """Return a function: `tiny("pe=vo_rope")` is the small run's config with these overrides."""
    *words, _ = tiny_overrides
    folder = str(tmp_path / "run")
    return lambda *overrides: composed(*words, *overrides).replace("run", dir=folder)
