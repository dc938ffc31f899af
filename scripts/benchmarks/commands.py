"""The parts that are whole commands, timed as a user meets them."""

import os
import pstats
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import ours
from benchmarks.race import quartiles
from benchmarks.setting import Bench
from rope_exp.system.files import read_json

TRAIN = (sys.executable, "train.py")
START_ROUNDS = 5
SWEEP_STEPS = 100
NEVER = "1000000"
UNINTERRUPTED = (f"train.eval_every={NEVER}", f"train.save_every={NEVER}")


def start(bench: Bench, model: str) -> dict[str, Any]:
    """Time --help, a config error, and the first step of a run that is prepared and compiled."""
    words = [*bench.words(model), "train.num_steps=1000", "train.log_every=1", *UNINTERRUPTED]
    _first_row(words)
    rounds = range(START_ROUNDS)
    return {
        "--help": quartiles([_ended([*TRAIN, "--help"]) for _ in rounds]),
        "a config error": quartiles([_ended([*TRAIN, "pe=vo_rop"], code=2) for _ in rounds]),
        "the first step, prepared and compiled": quartiles([_first_row(words) for _ in rounds]),
    }


def placement(bench: Bench, model: str) -> dict[str, Any]:
    """Train four runs in one sweep, by how they share the machine.

    One after the other on all cores; as many at a time as there are cores, one each; and one after
    the other as two processes of one core each.
    """
    cores = len(os.sched_getaffinity(0))
    ways = {
        "unmeasured: it compiles": "launch.max_parallel=1",
        "one run at a time, all cores": "launch.max_parallel=1",
        "a run a core": f"launch.max_parallel={cores}",
        "one run at a time, a process a core": f"launch.num_processes={cores}",
    }
    words = ["-m", f"model={model}", "pe=nope,qk_rope", "seed=0,1", *bench.options.overrides]
    words += ["launch.device=cpu", "train.compile=true"]
    words += [f"train.num_steps={SWEEP_STEPS}", *UNINTERRUPTED]
    found = {}
    for name, way in ways.items():
        with tempfile.TemporaryDirectory() as folder:
            run_dir = f"run.dir={folder}/${{pe.name}}-${{seed}}"
            wall_s = _ended([*TRAIN, *words, way, run_dir])
            results = [read_json(path) for path in Path(folder).glob("*/result.json")]
        at_once = min(cores, len(results)) if name == "a run a core" else 1
        rate = statistics.mean(result["tokens_per_s"] for result in results)
        found[name] = {"wall_s": wall_s, "tokens_per_s": at_once * rate}

    del found["unmeasured: it compiles"]
    return found


def reliability(bench: Bench, model: str) -> dict[str, Any]:
    """Profile one run, and say what checksums, fsync and saving take of it.

    Returns:
        wall_s of the run, params, share (of checksums and fsync together), and seconds, each with
        what it calls: of fsync, of the functions that call SHA-256, and of checkpoint.save.
    """
    with tempfile.TemporaryDirectory() as folder:
        profile = Path(folder, "profile")
        words = [f"model={model}", *bench.options.overrides, "launch=inline"]
        profiled = [sys.executable, "-m", "cProfile", "-o", str(profile), *TRAIN[1:]]
        _ended([*profiled, *words, f"run.dir={folder}/run"])
        result = read_json(Path(folder, "run", "result.json"))
        functions = pstats.Stats(str(profile)).stats  # type: ignore[attr-defined]

    seconds: dict[str, float] = {}
    saving: dict[str, float] = {}
    for (file, _, name), (_, _, _, cumulative, callers) in functions.items():
        if name == "<built-in method posix.fsync>":
            seconds["fsync"] = cumulative
        if name == "save" and file.endswith("checkpoint.py"):
            saving["checkpoint.save"] = cumulative
        if "openssl_sha256" in name or "_hashlib.HASH" in name:
            for caller in callers:
                # torch's compiler hashes, too.
                if "site-packages" not in caller[0]:
                    seconds[f"{Path(caller[0]).stem}.{caller[2]}"] = functions[caller][3]

    return {
        "wall_s": result["wall_s"],
        "params": result["params"],
        "share": sum(seconds.values()) / result["wall_s"],
        "seconds": seconds | saving,
    }


def _first_row(words: list[str]) -> float:
    """Return the seconds from the command to its first row in metrics.jsonl; then stop it."""
    with tempfile.TemporaryDirectory() as folder:
        rows = Path(folder, "run", "metrics.jsonl")
        command = [*TRAIN, *words, f"run.dir={folder}/run"]
        started = time.perf_counter()
        with subprocess.Popen(command, cwd=ours.REPOSITORY, stderr=subprocess.DEVNULL) as process:
            while not (rows.exists() and rows.stat().st_size):
                if process.poll() is not None:
                    raise RuntimeError(f"train.py ended with exit code {process.returncode}")
                time.sleep(0.01)
            seconds = time.perf_counter() - started
            process.terminate()
    return seconds


def _ended(command: list[str], code: int = 0) -> float:
    """Return the seconds until a command has ended, with that exit code."""
    started = time.perf_counter()
    done = subprocess.run(command, cwd=ours.REPOSITORY, capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - started
    if done.returncode != code:
        raise RuntimeError(f"{command}: exit code {done.returncode}\n{done.stderr[-2000:]}")
    return seconds
