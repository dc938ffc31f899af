"""Test of a random history of commands and faults, against a model after each step.

A step is a sweep, a campaign, a report, or a sweep with run.fresh=true. Meanwhile nothing happens,
or all processes are killed or paused, the clock jumps, or the disk fills up. The model knows the
files of finished work, which must not change. HISTORY_STEPS is the number of steps, and
HISTORY_SEED selects the history.
"""

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from support.campaigns import (
    PYTHONPATH,
    RUNS,
    SHORT,
    assert_same_records,
    records_of,
    start_campaign,
)
from support.disks import Disk
from support.runs import Process, assert_same_run, kill_the_tree, num_rows, start, tree_of

from rope_exp.evidence.records import read_record
from rope_exp.run.checkpoint import list_steps, load

pytestmark = pytest.mark.cluster

STEPS = int(os.environ.get("HISTORY_STEPS", "12"))
SEED = int(os.environ.get("HISTORY_SEED", "2"))
COMMANDS = ("sweep", "sweep", "campaign", "campaign", "fresh", "report")
FAULTS = ("nothing", "kill", "kill", "pause", "clock", "full disk")
DAY = 86_400


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    """Yield a disk of 64 MB, and unmount it at the end."""
    disk = Disk(tmp_path)
    yield disk
    disk.unmount()


@pytest.fixture
def clock(tmp_path: Path) -> Path:
    """Return the path of clock.c, compiled to a library."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("a clock that jumps takes a C compiler")
    library = tmp_path / "clock.so"
    source = Path(__file__).with_name("clock.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-Wall", "-o", library, source], check=True)
    return library


class History:
    """The commands of one folder, and a model of their finished work.

    Attributes:
        done: the content of each file that must not change any more.
        results: the content of every result.json so far.
    """

    def __init__(self, home: Path, quiet: Path, cache: Path, clock: Path) -> None:
        self.home = home
        self.quiet = quiet
        self.clock = clock
        self.environment = {"ROPE_EXP_CACHE": str(cache), "PYTHONPATH": PYTHONPATH}
        self.rng = random.Random(SEED)
        self.done: dict[Path, bytes] = {}
        self.results: set[bytes] = set()

    def start(self, command: str, **environment: str) -> Process:
        """Start a command, and return its process."""
        environment |= self.environment
        if command == "campaign":
            return start_campaign(self.home, **environment)
        if command == "report":
            words = ["-m", "rope_exp", "report", "--group", "swept"]
            return subprocess.Popen(
                [sys.executable, *words],
                cwd=self.home,
                env=os.environ | environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        words = ["-m", *SHORT, "pe=qk_rope,vo_rope", "seed=0", "run.group=swept"]
        return start(*words, f"run.fresh={command == 'fresh'}", cwd=self.home, **environment)

    def step(self, command: str, fault: str) -> None:
        """Run a command while a fault happens, and compare its files with the model."""
        is_left = len(records_of(self.home)) < 2
        has_run = any(self.home.glob(f"{RUNS}/swept/*/seed0/config.yaml"))
        environment = {}
        if fault == "clock":
            jump = self.rng.choice((-DAY, DAY))
            environment = {"LD_PRELOAD": str(self.clock), "CLOCK_JUMP": str(jump)}
        process = self.start(command, **environment)
        self._wait(process, trains=command != "report")
        stderr = self._disturb(process, fault)

        expected = {0}
        if command == "report" and not has_run:
            expected = {2}
        if fault == "kill":
            expected |= {-signal.SIGKILL}
        if fault == "full disk":
            expected |= {1}
        print(f"{command}, {fault}: exit {process.returncode} of {expected}", flush=True)
        assert process.returncode in expected, stderr
        assert "Traceback" not in stderr
        if process.returncode == 1:
            assert "no space left" in stderr
        if command == "campaign" and process.returncode == 0 and is_left:
            assert len(records_of(self.home)) == 2
        self.compare(begins_anew=command == "fresh")

    def _wait(self, process: Process, *, trains: bool) -> None:
        """Wait for a random moment during the start, or soon after a row of metrics."""
        before = self._num_rows()
        waits_for_row = trains and self.rng.random() < 0.7
        begun = None if waits_for_row else time.monotonic()
        delay = self.rng.random() * (0.5 if waits_for_row else 4)
        while process.poll() is None:
            if begun is None and self._num_rows() != before:
                begun = time.monotonic()
            if begun is not None and time.monotonic() - begun > delay:
                return
            time.sleep(0.005)

    def _disturb(self, process: Process, fault: str) -> str:
        """Disturb a command with a fault, and return its standard error."""
        eater = self.home / "eater"
        if fault == "kill" and process.poll() is None:
            kill_the_tree(process.pid)
        if fault == "pause" and process.poll() is None:
            victims = tree_of(process.pid)
            for number in (signal.SIGSTOP, signal.SIGCONT):
                for victim in victims:
                    with suppress(ProcessLookupError):
                        os.kill(victim, number)
                time.sleep(1)
        if fault == "full disk":
            with suppress(OSError), eater.open("wb", buffering=0) as file:
                while file.write(bytes(1 << 16)):
                    pass
        _, stderr = process.communicate(timeout=120)
        eater.unlink(missing_ok=True)
        return stderr

    def _num_rows(self) -> list[int]:
        return [num_rows(run) for run in self._runs()]

    def _runs(self) -> list[Path]:
        """Return the folders of all runs, including those that were moved aside."""
        runs = self.home / RUNS
        return sorted([*runs.glob("mine/*-s0"), *runs.glob("swept/*/*seed0*")])

    def compare(self, *, begins_anew: bool) -> None:
        """Assert that finished work is unchanged and complete, then update the model.

        Args:
            begins_anew: the sweep's runs may have been moved aside.
        """
        for path, content in self.done.items():
            if not (begins_anew and "swept" in path.parts):
                assert path.read_bytes() == content, path
        runs = self._runs()
        found = {path.read_bytes() for run in runs for path in run.glob("result.json")}
        assert found >= self.results
        self.results = found

        self.done = {path: path.read_bytes() for path in records_of(self.home)}
        for run in runs:
            steps = list_steps(run / "checkpoints")
            assert all(load(run / "checkpoints", step).step == step for step in steps)
            if (run / "result.json").exists():
                variant = "qk" if "qk" in str(run.relative_to(self.home)) else "vo"
                assert_same_run(self.quiet / RUNS / f"mine/{variant}-s0", run)
                # env.json lists a run's starts, so it would show another one.
                names = ("result.json", "env.json", "metrics.jsonl")
                self.done |= {run / name: (run / name).read_bytes() for name in names}
        assert all(read_record(path).status == "finished" for path in records_of(self.home))


def test_a_random_history(
    disk: Disk, quiet: Path, make_home: Callable[[Path], Path], cache: Path, clock: Path
) -> None:
    """In the end, every run and every record equals its undisturbed counterpart."""
    history = History(make_home(disk.root / "home"), quiet, cache, clock)
    commands, faults = (history.rng.sample(each * STEPS, STEPS) for each in (COMMANDS, FAULTS))
    for command, fault in zip(commands, faults, strict=True):
        history.step(command, fault)

    for command in ("sweep", "campaign", "report"):
        history.step(command, "nothing")
    assert_same_records(history.home, quiet)
    assert len(list(history.home.glob(f"{RUNS}/swept/*/seed0/result.json"))) == 2
