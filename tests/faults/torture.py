"""Kill -9 at random instants, the same command again, and every number compared: `python tests/torture.py --kills 50`.

An episode is one run from an empty cache to its end, killed ten times on the way: while it starts, prepares data,
compiles, steps, evaluates, saves, or anywhere. The dispatcher, one of its processes, or all of them are killed. Then
its rows, its final weights and moments, and its result must equal those of a run that nobody touched, bit for bit.
Kinds of episodes alternate: one process, one process compiled in the machine's own precision, two processes.

Writes torture.json and figures/torture.png below --out. Exit codes: 0 all equal, 1 not.
"""

import argparse
import hashlib
import json
import os
import platform
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib
from support.runs import kill_alone, kill_the_tree, num_rows, numbers, processes_of, start, train

from rope_exp.system.files import read_json, write_atomically

EVAL_EVERY, SAVE_EVERY = 20, 7
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
    "start", "preparation", "preparation", "first step", "save", "step", "evaluation", "save", "evaluation", "anywhere"
)  # fmt: skip
VICTIMS = ("all", "the dispatcher", "one process")


class Episode:
    """One run that is killed again and again."""

    def __init__(self, kind: str, number: int, folder: Path, rng: random.Random) -> None:
        self.kind, self.number, self.run, self.cache, self.rng = (
            kind,
            number,
            folder / "run",
            folder / "cache",
            rng,
        )
        self.command = [*SMALL, *EVERY, *KINDS[kind], "pe=vo_rope", f"run.dir={self.run}"]
        self.command += [f"data.cache_dir={self.cache}"]
        self.began = time.monotonic()
        self.kills: list[dict[str, Any]] = []
        self.curve: list[tuple[float, int]] = []  # seconds since the beginning, rows recorded

    def go(self, aims: list[str]) -> None:
        """Start, kill, start again, ..., and run to the end."""
        for aim in aims:
            while not self._killed(aim):
                if (self.run / "result.json").exists():
                    return
        while not (self.run / "result.json").exists():
            process = start(*self.command, cwd=self.run.parent)
            self._follow(process, lambda: False)

    def _killed(self, aim: str) -> bool:
        """Start the run and kill it when the aim says; False if it had ended before."""
        rows, began, self.started = num_rows(self.run), time.monotonic(), time.time()
        saved = [int(path.name[5:]) for path in (self.run / "checkpoints").glob("step_*")]
        self.resumed_at = max(saved, default=0)
        process = start(*self.command, cwd=self.run.parent)
        if not self._follow(process, self._moment(aim, rows)):
            return False
        seen, victim = self._doing(), self.rng.choice(VICTIMS)
        if victim == "one process":
            ranks = [
                pid
                for pid, words in processes_of(self.run).items()
                if "rope_exp.training.worker" in words
            ]
            victim = victim if ranks else "the dispatcher"
        if victim == "all":
            kill_the_tree(process.pid)
        elif victim == "the dispatcher":
            kill_alone(process.pid)
        else:
            os.kill(self.rng.choice(ranks), signal.SIGKILL)
        process.communicate(timeout=90)
        self.kills.append(
            {"aim": aim, "seen": seen, "victim": victim, "step": num_rows(self.run),
             "seconds_in": round(time.monotonic() - began, 2), "at": round(time.monotonic() - self.began, 2)}
        )  # fmt: skip
        where = f"in {seen:12} at row {num_rows(self.run)}"
        print(f"{self.number:3} {self.kind:14} killed {victim:15} {where}", flush=True)
        return True

    def _follow(self, process: "subprocess.Popen[str]", done: Callable[[], bool]) -> bool:
        """Note the step as it grows until `done`; False if the process ends before."""
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
        """When to kill: true a random while after what is aimed at was seen."""
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
            return bool(list(self.cache.glob(".*.*")))
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
        """What the run was seen to do."""
        if not self._prepared():
            return "preparation" if list(self.cache.glob(".*.*")) else "start"
        if list((self.run / "checkpoints").glob(".saving-*")):
            return "save"
        env, now = self.run / "env.json", num_rows(self.run)
        if not env.exists() or env.stat().st_mtime < self.started:
            return "start"
        if now == self.resumed_at:
            return "first step"  # where it is compiled, if it is
        return "evaluation" if now % EVAL_EVERY == EVAL_EVERY - 1 else "step"

    def fingerprint(self) -> dict[str, Any]:
        """Every number of the run that no clock wrote."""
        last = sorted((self.run / "checkpoints").glob("step_*"))[-1]
        result = {
            k: v
            for k, v in read_json(self.run / "result.json").items()
            if k not in ("tokens_per_s", "wall_s")
        }
        files = {
            name: _sha256(last / name) for name in ("model.safetensors", "optimizer.safetensors")
        }
        return {"rows": numbers(self.run), "result": result, **files}


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def draw(episodes: list[dict[str, Any]]) -> bytes:
    """Steps recorded over time, one line an episode: it falls back to the last checkpoint at each kill."""
    matplotlib.use("Agg")
    import io

    from matplotlib import pyplot

    colours = dict(
        zip(
            ("start", "preparation", "first step", "step", "evaluation", "save"),
            _palette(),
            strict=True,
        )
    )
    figure, axes = pyplot.subplots(
        len(episodes), 1, figsize=(9, 1.3 * len(episodes) + 1), squeeze=False, sharex=True
    )
    for axis, episode in zip(axes[:, 0], episodes, strict=True):
        axis.plot(
            *zip(*episode["curve"], strict=True),
            color="0.35",
            linewidth=1.2,
            drawstyle="steps-post",
        )
        for kill in episode["kills"]:
            axis.plot(
                kill["at"],
                kill["step"],
                "x",
                color=colours[kill["seen"]],
                markersize=8,
                markeredgewidth=2,
            )
        verdict = "equal, bit for bit" if episode["equal"] else "NOT EQUAL"
        axis.set_title(
            f"{episode['kind']}, {len(episode['kills'])} kills: {verdict}", fontsize=9, loc="left"
        )
        axis.set_ylabel("rows")
        axis.spines[["top", "right"]].set_visible(False)
    axes[-1, 0].set_xlabel("seconds since the run was first started")
    handles = [
        pyplot.Line2D([], [], color=c, marker="x", linestyle="", markeredgewidth=2)
        for c in colours.values()
    ]
    labels = [f"killed in {name}" for name in colours]
    figure.legend(handles, labels, loc="upper center", ncols=6, fontsize=8, frameon=False)
    figure.tight_layout(rect=(0, 0, 1, 1 - 0.35 / figure.get_figheight()))
    image = io.BytesIO()
    figure.savefig(image, dpi=130, metadata={"Software": None})
    return image.getvalue()


def _palette() -> tuple[str, ...]:
    return ("#7f7f7f", "#8c564b", "#9467bd", "#1f77b4", "#ff7f0e", "#d62728")


def main() -> int:
    """Run the episodes, compare, write."""
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
            number, kind = len(episodes), list(KINDS)[len(episodes) % len(KINDS)]
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
            print(
                f"{number:3} {kind:14} {len(episode.kills)} kills: {'equal, bit for bit' if equal else 'NOT EQUAL'}"
            )
            if not equal:
                shutil.copytree(
                    episode.run, arguments.out / f"torture-{number}-unequal", dirs_exist_ok=True
                )
            episodes.append(
                {"kind": kind, "equal": equal, "kills": episode.kills, "curve": episode.curve}
            )
            shutil.rmtree(episode.run.parent)
    kills = [kill for episode in episodes for kill in episode["kills"]]
    summary = {
        "command": f"python tests/torture.py --kills {arguments.kills} --seed {arguments.seed}",
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
    write_atomically(arguments.out / "figures/torture.png", draw(episodes))
    print(json.dumps(summary, indent=2))
    return 0 if all(episode["equal"] for episode in episodes) else 1


if __name__ == "__main__":
    sys.exit(main())
