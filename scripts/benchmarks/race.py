"""Contenders side by side: each in a process of its own, a few steps of one, then of the next.

What the machine does meanwhile then falls on all alike. Of each round the ratio to the first
contender is taken, and of all rounds the median: a ratio is worth more than either of its rates.
"""

import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.ours import REPOSITORY, Spec
from rope_exp.system.console import log

ARMS = Path(__file__).with_name("arms.py")


def race(specs: Mapping[str, Spec], *, rounds: int, steps: int, warmup: int = 3) -> dict[str, Any]:
    """Let contenders take steps in turn.

    Args:
        specs: What each is told, with its `arm` of arms.py, and where it differs its `python` and
            what its `environment` has besides. Ratios are to the first.
        rounds: How often each has its turn.
        steps: How many steps a turn has.
        warmup: How many steps follow the first one unmeasured.
    Returns:
        By contender: first_step_s (which compiles), step_s (quartiles), tokens_per_s, peak_bytes,
        rounds, and times_as_slow: quartiles of its step time over the first contender's.
    Raises:
        RuntimeError: A contender ended; the message has its last words.
    """
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        contenders: dict[str, Contender] = {}
        first_step_s: dict[str, float] = {}
        for name, spec in specs.items():
            log(f"  {name}: setting up")
            contender = Contender(spec, folder / str(len(contenders)))
            contenders[name] = stack.enter_context(contextlib.closing(contender))
            first_step_s[name] = contender.take(1)
            contender.take(warmup)

        step_s: dict[str, list[float]] = {name: [] for name in specs}
        order = list(specs)
        for _ in range(rounds):
            for name in order:
                step_s[name].append(contenders[name].take(steps))
            # Neither of two always follows the other.
            order.reverse()

    [first, *_] = step_s.values()
    return {
        name: {
            "first_step_s": first_step_s[name],
            "step_s": quartiles(own),
            "tokens_per_s": specs[name]["tokens_per_step"] / statistics.median(own),
            "times_as_slow": quartiles([mine / its for mine, its in zip(own, first, strict=True)]),
            "peak_bytes": contenders[name].peak_bytes,
            "rounds": rounds,
        }
        for name, own in step_s.items()
    }


def quartiles(values: Sequence[float]) -> list[float]:
    """Return the lower quartile, the median and the upper quartile."""
    return [float(value) for value in np.quantile(values, (0.25, 0.5, 0.75))]


class Contender:
    """A child process that takes as many steps as it is asked for."""

    def __init__(self, spec: Spec, folder: Path) -> None:
        folder.mkdir()
        told = folder / "spec.json"
        told.write_text(json.dumps(spec), encoding="utf-8")

        # One GPU, whatever there are: transformers would spread over all, with a batch for each.
        gpu = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
        environment = os.environ | {"CUDA_VISIBLE_DEVICES": gpu, "HF_HUB_OFFLINE": "1"}
        environment["PYTHONPATH"] = f"{ARMS.parents[1]}{os.pathsep}{spec.get('tree', REPOSITORY)}"

        self.peak_bytes = 0
        self.log = folder / "log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [spec.get("python", sys.executable), str(ARMS), spec["arm"], str(told)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment | spec.get("environment", {}),
            )

    def take(self, steps: int) -> float:
        """Have it take steps; return the seconds that each took, 0 where it was to take none."""
        if steps == 0:
            return 0.0
        assert self.process.stdin is not None
        assert self.process.stdout is not None

        # One that has ended tells so by giving no answer.
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(b"%d\n" % steps)
            self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            words = self.log.read_text(encoding="utf-8", errors="replace")
            raise RuntimeError(f"a contender ended:\n{words[-3000:]}")

        answer = json.loads(line)
        self.peak_bytes = answer["peak_bytes"]
        return float(answer["step_s"])

    def close(self) -> None:
        """End it, whatever it is doing."""
        self.process.kill()
        with contextlib.suppress(BrokenPipeError):
            self.process.communicate()
