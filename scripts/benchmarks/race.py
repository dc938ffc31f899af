"""Races of contenders side by side: each in its own process, a few steps of one, then of the next.

Other load of the machine then affects all alike. Each round gives a ratio to the first contender,
and the result is the median over rounds: a ratio is more reliable than either of its rates.
"""

import contextlib
import os
import statistics
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.ours import Spec
from rope_exp.system.console import log

ARMS = Path(__file__).with_name("arms.py")


def race(specs: Mapping[str, Spec], *, rounds: int, steps: int, warmup: int = 3) -> dict[str, Any]:
    """Let contenders take steps in turn.

    Args:
        specs: Each contender's settings, with its `arm` of arms.py. Ratios are to the first.
        rounds: The number of turns of each contender.
        steps: The number of steps in a turn.
        warmup: The number of unmeasured steps after the first one.
    Returns:
        By contender: first_step_s (which compiles), step_s (quartiles), tokens_per_s, peak_bytes,
        rounds, and times_as_slow: quartiles of its step time over the first contender's.
    Raises:
        RuntimeError: A contender ended; the message has the end of its output.
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
            if warmup:
                contender.take(warmup)

        step_s: dict[str, list[float]] = {name: [] for name in specs}
        order = list(specs)
        for _ in range(rounds):
            for name in order:
                step_s[name].append(contenders[name].take(steps))
            # With two contenders, neither always follows the other.
            order.reverse()

    [first, *_] = step_s.values()
    return {
        name: {
            "first_step_s": first_step_s[name],
            "step_s": quartiles(own),
            "tokens_per_s": specs[name]["tokens_per_step"] / statistics.median(own),
            "times_as_slow": quartiles(np.array(own) / np.array(first)),
            "peak_bytes": contenders[name].peak_bytes,
            "rounds": rounds,
        }
        for name, own in step_s.items()
    }


def quartiles(values: Sequence[float] | NDArray[np.float64]) -> list[float]:
    """Return the lower quartile, the median and the upper quartile."""
    return [float(value) for value in np.quantile(values, (0.25, 0.5, 0.75))]


class Contender:
    """A child process that takes steps on request."""

    def __init__(self, spec: Spec, folder: Path) -> None:
        folder.mkdir()
        self.log = folder / "log"
        self.peak_bytes = 0

        # Only one GPU: transformers would use all of them, with a batch for each.
        gpu = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
        changes = {
            "CUDA_VISIBLE_DEVICES": gpu,
            "HF_HUB_OFFLINE": "1",
            "PYTHONPATH": f"{ARMS.parents[1]}{os.pathsep}{spec['tree']}",
        }
        self.arm, its_end = Pipe()
        with its_end, self.log.open("wb") as log:
            number = its_end.fileno()
            self.process = subprocess.Popen(
                [spec["python"], str(ARMS), str(number)],
                pass_fds=[number],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=os.environ | changes,
            )
        self.arm.send(spec | {"folder": str(folder)})

    def take(self, steps: int) -> float:
        """Have it take steps; return the mean seconds of a step."""
        try:
            self.arm.send(steps)
            seconds, self.peak_bytes = self.arm.recv()
        except (EOFError, OSError):
            words = self.log.read_text(encoding="utf-8", errors="replace")
            raise RuntimeError(f"a contender ended:\n{words[-3000:]}") from None
        return float(seconds)

    def close(self) -> None:
        """End it, whatever it is doing."""
        self.process.kill()
        self.process.wait()
        self.arm.close()
