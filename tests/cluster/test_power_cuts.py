"""Tests of power cuts at random moments, after which the same command is repeated.

After each cut, everything that was reported done exists, and everything that exists is complete.
In the end, every number equals an undisturbed run's. POWER_CUTS is the number of cuts.
"""

import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.campaigns import assert_same_records, records_of, run_campaign_command, start_campaign
from support.configs import REPOSITORY, left_in
from support.disks import Disk
from support.runs import Process, assert_same_run, num_rows, numbers, start, train

from rope_exp.checkpoint import list_steps, load
from rope_exp.records import read_record

pytestmark = pytest.mark.cluster

CUTS = int(os.environ.get("POWER_CUTS", "12"))
# The number of cuts in each test: three kinds of commands, with and without a journal.
SHARES = [CUTS // 6 + (number < CUTS % 6) for number in range(6)]
JOURNALS = ("journal", "no journal")
SAVE_EVERY = 10  # of the run `whole`


def shares(first: int) -> pytest.MarkDecorator:
    """Run a test with and without a journal; `first` is its first index in SHARES."""
    cases = [(journal, SHARES[first + 3 * number]) for number, journal in enumerate(JOURNALS)]
    return pytest.mark.parametrize(("journal", "cuts"), cases, ids=JOURNALS)


@pytest.fixture
def disk(tmp_path: Path, journal: str) -> Iterator[Disk]:
    """Yield a disk of 64 MB, and unmount it at the end."""
    disk = Disk(tmp_path, journal=journal == "journal")
    yield disk
    disk.unmount()


@pytest.fixture
def rng(journal: str) -> random.Random:
    """Return a generator that draws the same moments in every session."""
    return random.Random(journal)


def follow(process: Process, is_due: Callable[[], bool], delay: float) -> str:
    """Wait until a moment is due and `delay` seconds more, or until the command ends.

    Returns:
        "running", or "ended" after exit code 0.
    """
    due_at = float("inf")
    deadline = time.monotonic() + 120
    while process.poll() is None and time.monotonic() < due_at + delay:
        assert time.monotonic() < deadline
        if due_at == float("inf") and is_due():
            due_at = time.monotonic()
        time.sleep(0.001)
    assert process.poll() in (None, 0), process.communicate()
    return "ended" if process.poll() == 0 else "running"


@shares(0)
def test_a_run(
    disk: Disk, cuts: int, rng: random.Random, whole: tuple[Path, list[str]], tmp_path: Path
) -> None:
    """A row after a checkpoint's step reports that the checkpoint is saved."""
    undisturbed, command = whole
    rows = numbers(undisturbed)
    number = 0
    run = disk.root / "runs/vo/run0"
    begun = 0

    def is_saving() -> bool:
        return num_rows(run) > begun and bool(list((run / "checkpoints").glob(".saving-*")))

    moments: dict[str, tuple[Callable[[], bool], float]] = {
        "beginning": (lambda: (run / "config.yaml").exists(), 2.0),
        "row": (lambda: num_rows(run) > begun, 0.3),
        "save": (is_saving, 0.02),
        "end": (lambda: False, 0.0),
    }
    for _ in range(cuts):
        moment = rng.choice(("beginning", "row", "row", "save", "save", "end"))
        is_due, longest = moments[moment]
        begun = num_rows(run)
        process = start(*command, f"run.dir={run}", cwd=tmp_path)
        state = follow(process, is_due, longest * rng.random())
        reported = max(num_rows(run) - 1, 0) // SAVE_EVERY * SAVE_EVERY
        disk.cut(process)

        steps = list_steps(run / "checkpoints")
        newest = max(steps, default=0)
        print(f"{moment}: {state}, saved {reported}, found {steps}, {num_rows(run)} rows")
        assert newest >= reported
        assert all(load(run / "checkpoints", step).step == step for step in steps)
        assert num_rows(run) >= newest
        assert numbers(run) == rows[: num_rows(run)]
        if state == "ended":
            assert_same_run(undisturbed, run)
            number += 1
            run = disk.root / f"runs/vo/run{number}"

    done = train(*command, f"run.dir={run}", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert_same_run(undisturbed, run)


def rows_of(home: Path) -> list[int]:
    """Return the number of rows of a campaign's two runs."""
    return [num_rows(home / f"results/runs/mine/{cell}") for cell in ("qk-s0", "vo-s0")]


@shares(1)
def test_a_campaign(
    disk: Disk,
    cuts: int,
    rng: random.Random,
    quiet: Path,
    make_home: Callable[[Path], Path],
    cache: Path,
) -> None:
    """The second run's first row reports that the first run's record is written."""

    def make_durable(number: int) -> Path:
        home = make_home(disk.root / f"home{number}")
        disk.unmount()
        disk.mount()
        return home

    number = 0
    home = make_durable(number)
    for _ in range(cuts):
        moment = rng.choice(("row", "record", "record", "end"))
        before = (rows_of(home), len(records_of(home)))
        process = start_campaign(home, ROPE_EXP_CACHE=str(cache))

        def is_due(home: Path = home, moment: str = moment, before: Any = before) -> bool:
            rows, num_records = before
            if moment == "row":
                return rows_of(home) != rows
            return moment == "record" and len(records_of(home)) > num_records

        state = follow(process, is_due, rng.random())
        num_reported = 2 if state == "ended" else int(rows_of(home)[1] > 0)
        reported = {path: path.read_bytes() for path in records_of(home)[:num_reported]}
        assert len(reported) == num_reported
        disk.cut(process)

        found = records_of(home)
        rows = rows_of(home)
        print(
            f"{moment}: {state}, reported {num_reported}, found {len(found)} records, rows {rows}"
        )
        assert {path: path.read_bytes() for path in found[:num_reported]} == reported
        assert all(read_record(path).status == "finished" for path in found)
        if state == "ended":
            assert_same_records(home, quiet)
            number += 1
            home = make_durable(number)

    done = run_campaign_command(home, ROPE_EXP_CACHE=str(cache))
    assert done.returncode == 0, done.stderr
    assert_same_records(home, quiet)


@shares(2)
def test_preparation(disk: Disk, cuts: int, rng: random.Random, tmp_path: Path) -> None:
    """A folder of prepared tokens is complete, or does not exist."""
    text = tmp_path / "text"
    text.mkdir()
    for number in range(500):
        (text / f"{number}.txt").write_text(f"{number} " * 1000, encoding="utf-8")

    def prepare(cache: Path) -> Process:
        command = ["data=files", f"data.path={text}", "tokenizer=bytes", f"data.cache_dir={cache}"]
        return subprocess.Popen(
            [sys.executable, "-m", "rope_exp", "prepare", *command],
            cwd=REPOSITORY,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def content(folder: Path) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in folder.iterdir()}

    _, stderr = (process := prepare(tmp_path / "cache")).communicate()
    assert process.returncode == 0, stderr
    (name,) = left_in(tmp_path / "cache")
    undisturbed = content(tmp_path / "cache" / name)

    number = 0
    for _ in range(cuts):
        cache = disk.root / f"cache{number}/below"
        # The folder is made under a hidden name, then renamed.
        made, longest = rng.choice(((f".{name}", 2.0), (name, 0.1)))
        process = prepare(cache)

        def is_due(made: Path = cache / made) -> bool:
            return made.exists()

        state = follow(process, is_due, longest * rng.random())
        seen = (cache / name).exists()
        disk.cut(process)

        found = [each for each in left_in(cache) if each[0] != "."]
        print(f"{made}: {state}, seen {seen}, found {found}")
        assert found == [name] or (state == "running" and not found)
        for each in found:
            assert content(cache / each) == undisturbed
            number += 1

    cache = disk.root / f"cache{number}/below"
    _, stderr = (process := prepare(cache)).communicate()
    assert process.returncode == 0, stderr
    assert content(cache / name) == undisturbed
