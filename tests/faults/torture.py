"""Kill runs with SIGKILL at random moments, repeat the same command, and compare every number.

`PYTHONPATH=tests python tests/faults/torture.py --kills 50`. An episode is one run from an empty
cache to its end, killed up to ten times: while it starts, prepares data, compiles, steps, evaluates
or saves, or at any moment. The dispatcher, one of its ranks, or all of them are killed. In the end,
its rows, its final weights and moments, and its result must equal those of an undisturbed run, bit
for bit. Kinds of episodes alternate: one rank, one rank compiled in the machine's own precision,
two ranks.

Writes torture.json and torture.png below --out. Exit codes: 0 all equal, 1 not.
"""

import argparse
import hashlib
import json
import os
import platform
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from figure import draw
from support.runs import (
    Process,
    kill_alone,
    kill_the_tree,
    num_rows,
    numbers,
    ranks_of,
    result_without_clock,
    start,
    train,
)

from rope_exp.system.files import write_atomically

EVAL_EVERY = 20
SAVE_EVERY = 7
SMALL = (
    "train.num_steps=120",
    "train.global_batch_size=8",
    "train.seq_len=128",
    "train.eval_sequences=96",
)
EVERY = (f"train.eval_every={EVAL_EVERY}", f"train.save_every={SAVE_EVERY}", "train.log_every=1")
KINDS = {
    "one process": ("train.compile=false", "train.precision=fp32"),
    "compiled": ("train.compile=true",),
    "two processes": ("train.compile=false", "train.precision=fp32", "launch.num_processes=2"),
}
AIMS = (
    "start",
    "preparation",
    "preparation",
    "first step",
    "save",
    "step",
    "evaluation",
    "save",
    "evaluation",
    "anywhere",
)
VICTIMS = ("all", "the dispatcher", "one process")


class Episode:
    """One run that is killed and resumed several times."""

    def __init__(self, kind: str, number: int, folder: Path, rng: random.Random) -> None:
        self.kind = kind
        self.number = number
        self.run = folder / "run"
        self.cache = folder / "cache"
        self.rng = rng
        self.started = 0.0
        self.resumed_at = 0
        self.command = [*SMALL, *EVERY, *KINDS[kind], "pe=vo_rope", f"run.dir={self.run}"]
        self.command += [f"data.cache_dir={self.cache}"]
        self.began = time.monotonic()
        self.kills: list[dict[str, Any]] = []
        self.curve: list[tuple[float, int]] = []  # seconds since the beginning, rows recorded

    def go(self, aims: list[str]) -> None:
        """Start and kill the run once for each aim, then run it to the end."""
        for aim in aims:
            while not self._killed(aim):
                if (self.run / "result.json").exists():
                    return
        while not (self.run / "result.json").exists():
            process = start(*self.command, cwd=self.run.parent)
            self._follow(process, lambda: False)

    def _killed(self, aim: str) -> bool:
        """Start the run and kill it at the moment of `aim`; return False if it ends before."""
        rows = num_rows(self.run)
        began = time.monotonic()
        self.started = time.time()
        saved = [int(path.name[5:]) for path in (self.run / "checkpoints").glob("step_*")]
        self.resumed_at = max(saved, default=0)
        process = start(*self.command, cwd=self.run.parent)
        if not self._follow(process, self._moment(aim, rows)):
            return False

        seen = self._doing()
        victim = self.rng.choice(VICTIMS)
        ranks = ranks_of(self.run)
        if victim == "one process" and not ranks:
            victim = "the dispatcher"
        if victim == "all":
            kill_the_tree(process.pid)
        elif victim == "the dispatcher":
            kill_alone(process.pid)
        else:
            os.kill(self.rng.choice(ranks), signal.SIGKILL)
        process.communicate(timeout=90)

        now = time.monotonic()
        kill = {"aim": aim, "seen": seen, "victim": victim, "step": num_rows(self.run)}
        kill |= {"seconds_in": round(now - began, 2), "at": round(now - self.began, 2)}
        self.kills.append(kill)
        where = f"in {seen:12} at row {num_rows(self.run)}"
        print(f"{self.number:3} {self.kind:14} killed {victim:15} {where}", flush=True)
        return True

    def _follow(self, process: Process, done: Callable[[], bool]) -> bool:
        """Record the curve until `done()`; return False if the process ends before."""
        while process.poll() is None:
            if done():
                return True
            step = num_rows(self.run)
            if not self.curve or self.curve[-1][1] != step:
                self.curve.append((round(time.monotonic() - self.began, 2), step))
            time.sleep(0.002)
        _, stderr = process.communicate()
        assert process.returncode == 0, stderr
        return False

    def _moment(self, aim: str, rows: int) -> Callable[[], bool]:
        """Return a function that becomes true a random delay after the moment was seen."""
        began = time.monotonic()
        longest = {"save": 0.02, "evaluation": 0.4, "step": 0.3, "start": 1.5, "anywhere": 20.0}
        delay = self.rng.random() * longest.get(aim, 2.0)
        seen_at: list[float] = []

        def due() -> bool:
            if not seen_at and self._is_at(aim, rows, time.monotonic() - began):
                seen_at.append(time.monotonic())
            return bool(seen_at) and time.monotonic() - seen_at[0] >= delay

        return due

    def _is_at(self, aim: str, rows: int, seconds: float) -> bool:
        now = num_rows(self.run)
        if aim == "preparation" and not self._prepared():
            return bool(list(self.cache.glob(".*")))
        if aim == "save":
            return bool(list((self.run / "checkpoints").glob(".saving-*")))
        if aim == "evaluation":
            return now > rows and now % EVAL_EVERY == EVAL_EVERY - 1
        if aim == "first step":
            return (self.run / "env.json").exists() and now <= rows
        return seconds > 0 if aim in ("start", "anywhere") else now > rows

    def _prepared(self) -> bool:
        return any(path.is_dir() and path.name != "locks" for path in self.cache.glob("[!.]*"))

    def _doing(self) -> str:
        """Return what the run is doing, judged by its files."""
        if not self._prepared():
            return "preparation" if list(self.cache.glob(".*")) else "start"
        if list((self.run / "checkpoints").glob(".saving-*")):
            return "save"
        env, now = self.run / "env.json", num_rows(self.run)
        if not env.exists() or env.stat().st_mtime < self.started:
            return "start"
        if now == self.resumed_at:
            return "first step"  # includes any compilation
        return "evaluation" if now % EVAL_EVERY == EVAL_EVERY - 1 else "step"

    def fingerprint(self) -> dict[str, Any]:
        """Return every number of the run except times."""
        last = sorted((self.run / "checkpoints").glob("step_*"))[-1]
        files = {
            name: _sha256(last / name) for name in ("model.safetensors", "optimizer.safetensors")
        }
        return {"rows": numbers(self.run), "result": result_without_clock(self.run), **files}


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def main() -> int:
    """Run the episodes, compare them with undisturbed runs, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("results"))
    arguments = parser.parse_args()
    rng = random.Random(arguments.seed)
    episodes: list[dict[str, Any]] = []
    references: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory(prefix="rope_exp-torture-") as name:
        left = arguments.kills
        while left > 0:
            number = len(episodes)
            kind = list(KINDS)[number % len(KINDS)]
            if kind not in references:
                quiet = Episode(kind, number, Path(name, f"quiet{number}"), rng)
                quiet.run.parent.mkdir()
                done = train(*quiet.command, cwd=quiet.run.parent)
                assert done.returncode == 0, done.stderr
                references[kind] = quiet.fingerprint()
                shutil.rmtree(quiet.run.parent)
            episode = Episode(kind, number, Path(name, f"episode{number}"), rng)
            episode.run.parent.mkdir()
            episode.go(list(AIMS[: min(left, len(AIMS))]))
            equal = episode.fingerprint() == references[kind]
            left -= len(episode.kills)
            verdict = "equal, bit for bit" if equal else "NOT EQUAL"
            print(f"{number:3} {kind:14} {len(episode.kills)} kills: {verdict}")
            if not equal:
                shutil.copytree(
                    episode.run, arguments.out / f"torture-{number}-unequal", dirs_exist_ok=True
                )
            episodes.append(
                {"kind": kind, "equal": equal, "kills": episode.kills, "curve": episode.curve}
            )
            shutil.rmtree(episode.run.parent)
    kills = [kill for episode in episodes for kill in episode["kills"]]
    options = f"--kills {arguments.kills} --seed {arguments.seed}"
    summary = {
        "command": f"PYTHONPATH=tests python tests/faults/torture.py {options}",
        "kills": len(kills),
        "by_moment": dict(Counter(kill["seen"] for kill in kills).most_common()),
        "by_victim": dict(Counter(kill["victim"] for kill in kills).most_common()),
        "runs": len(episodes),
        "runs_equal": sum(episode["equal"] for episode in episodes),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
    }
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "figures").mkdir(exist_ok=True)
    write_atomically(
        arguments.out / "torture.json", json.dumps({**summary, "episodes": episodes}) + "\n"
    )
    write_atomically(arguments.out / "torture.png", draw(episodes))
    print(json.dumps(summary, indent=2))
    return 0 if all(episode["equal"] for episode in episodes) else 1


if __name__ == "__main__":
    sys.exit(main())
