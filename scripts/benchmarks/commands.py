"""Whole commands, timed as a user meets them: compiling, starting, and a sweep's placement."""

import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.race import Entry, quartiles, race
from rope_exp.config.compose import run_config
from rope_exp.config.run import RunConfig

REPOSITORY = Path(__file__).resolve().parents[2]
ROUNDS = 5
SWEEP_STEPS = 100


def compile_times(config: RunConfig) -> dict[str, Any]:
    """The first step of a fresh process: with an empty compiler's cache, with the one it left, of another variant with
    it, and uncompiled; and after how many steps a run has won back what compiling cost it."""
    other = dataclasses.replace(
        config, pe=run_config([f"model={config.model.name}", "pe=vo_rope"]).pe
    )
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as cache:
        environment = {"TORCHINDUCTOR_CACHE_DIR": cache}
        runs = {
            "cold": Entry("bare", config, environment=environment),
            "warm": Entry("bare", config, environment=environment),
            "other_variant": Entry("bare", other, environment=environment),
            "eager": Entry("bare eager", config),
        }
        for name, entry in runs.items():
            [summary] = race({name: entry}, rounds=1, steps=1, warmup=1).values()
            found[f"{name}_s"] = summary["first_step_s"]
        both = race({name: runs[name] for name in ("warm", "eager")}, rounds=3 * ROUNDS, steps=3)
    steps = {name: summary["step_s"][1] for name, summary in both.items()}
    won = steps["eager"] - steps["warm"]
    for name in ("cold", "warm"):
        found[f"pays_after_steps_{name}"] = (
            max(found[f"{name}_s"] - found["eager_s"], 0) / won if won > 0 else None
        )
    return found | {"eager_step_s": steps["eager"], "compiled_step_s": steps["warm"]}


def start_times() -> dict[str, list[float]]:
    """Seconds, quartiles: of --help, of a config error, and to the first step's row of a run whose data are prepared
    and whose graphs are compiled."""
    first_step = [
        "train.num_steps=1000",
        "train.log_every=1",
        "train.eval_every=1000",
        "train.save_every=1000",
    ]
    _first_row(first_step)  # prepares and compiles
    return {
        "--help": quartiles([_ended(["--help"], 0) for _ in range(ROUNDS)]),
        "a config error": quartiles([_ended(["pe=vo_rop"], 2) for _ in range(ROUNDS)]),
        "the first step, prepared and compiled": quartiles(
            [_first_row(first_step) for _ in range(ROUNDS)]
        ),
    }


def placement() -> dict[str, Any]:
    """tokens_per_s of four runs together, by how they share the machine: one after the other on all cores; as many at a
    time as there are cores, one each; and one after the other as two processes of one core each."""
    cores = len(os.sched_getaffinity(0))
    ways = {
        "one run at a time, all cores": [],
        "a run a core": [f"launch.max_parallel={cores}"],
        "one run at a time, a process a core": [f"launch.num_processes={cores}"],
    }
    steps = [
        "launch.device=cpu",
        f"train.num_steps={SWEEP_STEPS}",
        "train.eval_every=1000000",
        "train.save_every=1000000",
        "train.compile=true",
    ]
    found = {}
    for name, overrides in [("unmeasured: it compiles", ["launch.max_parallel=1"]), *ways.items()]:
        with tempfile.TemporaryDirectory() as folder:
            started = time.perf_counter()
            command = [
                "-m",
                "pe=nope,qk_rope",
                "seed=0,1",
                f"run.dir={folder}/${{pe.name}}-${{seed}}",
                *steps,
                *overrides,
            ]
            _ended(command, 0)
            wall = time.perf_counter() - started
            results = [
                json.loads(path.read_text(encoding="utf-8"))
                for path in Path(folder).glob("*/result.json")
            ]
        at_once = min(cores, len(results)) if overrides == ways["a run a core"] else 1
        found[name] = {
            "wall_s": wall,
            "tokens_per_s": at_once * sum(r["tokens_per_s"] for r in results) / len(results),
        }
    del found["unmeasured: it compiles"]
    return found


def _ended(arguments: list[str], code: int) -> float:
    """Seconds until `train.py` with these arguments has ended, with that exit code."""
    started = time.perf_counter()
    done = subprocess.run(
        _command(arguments), cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    assert done.returncode == code, (
        f"{arguments}: exit code {done.returncode}\n{done.stderr[-2000:]}"
    )
    return time.perf_counter() - started


def _first_row(arguments: list[str]) -> float:
    """Seconds from the command to the first step's row in metrics.jsonl; the run is then stopped."""
    with tempfile.TemporaryDirectory() as folder:
        rows = Path(folder, "run", "metrics.jsonl")
        started = time.perf_counter()
        process = subprocess.Popen(
            _command([f"run.dir={folder}/run", *arguments]),
            cwd=REPOSITORY,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            while not (rows.exists() and rows.stat().st_size):
                assert process.poll() is None, f"ended with {process.returncode}"
                time.sleep(0.01)
            seconds = time.perf_counter() - started
        finally:
            process.terminate()
            process.wait()
    return seconds


def _command(arguments: list[str]) -> list[str]:
    return [sys.executable, "train.py", *arguments]
