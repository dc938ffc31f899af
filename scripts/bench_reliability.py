"""What trust costs: checksums, fsync and deterministic mode, as shares of a run: `python scripts/bench_reliability.py`.

Takes the overrides of train.py (model=125m on a GPU, say). One run is made in this process, with a clock around every
fsync, every SHA-256 (of checkpoints, token blocks and batches) and every save. With --deterministic instead, pairs of
runs with and without deterministic mode take turns, and the ratio of their medians of tokens/s is printed. Nothing is
kept.
"""

import functools
import hashlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from rope_exp.config.compose import run_config
from rope_exp.config.resolve import settle
from rope_exp.data import store
from rope_exp.launch import sweep as launch
from rope_exp.run import checkpoint, metrics
from rope_exp.system.files import read_json
from rope_exp.system.signals import StopSignal
from rope_exp.training import trainer as loop
from rope_exp.training import worker

TRAIN = str(Path(__file__).resolve().parent.parent / "train.py")
PAIRS, PAIR_STEPS = 3, 150


class Clock:
    """Seconds spent inside functions, by what they are for; nested ones count for the inner."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._inner = 0.0

    def around(self, owner: Any, name: str, what: str) -> None:
        """Have `owner.name` timed as `what`."""
        function: Callable[..., Any] = getattr(owner, name)

        @functools.wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            outer, self._inner, began = self._inner, 0.0, time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                took = time.perf_counter() - began
                self.seconds[what] += took - self._inner
                self._inner = outer + took

        setattr(owner, name, timed)


def shares(overrides: list[str], folder: str) -> list[str]:
    """One run, its parts in percent of its wall time."""
    clock = Clock()
    clock.around(os, "fsync", "fsync")
    clock.around(hashlib, "file_digest", "SHA-256 of checkpoints")
    clock.around(checkpoint, "save", "the rest of saving (copies and writes)")
    clock.around(metrics.MetricsWriter, "write", "rows of metrics")
    clock.around(loop, "chain_sha256", "SHA-256 of the order of tokens")
    clock.around(store.Tokens, "_verify", "SHA-256 of token blocks")
    config = settle(run_config([*overrides, f"run.dir={folder}/run"]))
    [cell] = launch.plan([config])
    launch.take(cell)
    code = worker.explain_errors(lambda: worker.run(cell.config, cell.folder, StopSignal()))
    assert code == 0, code
    result = read_json(cell.folder / "result.json")
    saves = config.train.num_steps // config.train.save_every
    trust = [what for what in clock.seconds if "SHA" in what or what == "fsync"]
    rows = sorted(clock.seconds.items(), key=lambda item: -item[1])
    rows.append(("checksums and fsync together", sum(clock.seconds[what] for what in trust)))
    lines = [f"{result['wall_s']:.1f} s of run, {result['params']:,} parameters, {saves} saves"]
    return lines + [
        f"{what:42}{took:8.2f} s {100 * took / result['wall_s']:6.2f} %" for what, took in rows
    ]


def deterministic(overrides: list[str], folder: str) -> str:
    """The median tokens/s with deterministic mode over that without, of runs that take turns."""
    rates: dict[bool, list[float]] = {True: [], False: []}
    for number in range(PAIRS):
        for wanted in (True, False) if number % 2 else (False, True):
            run = Path(folder, f"{number}-{wanted}")
            words = [
                f"train.deterministic={str(wanted).lower()}",
                f"run.dir={run}",
                f"train.num_steps={PAIR_STEPS}",
            ]
            command = [sys.executable, TRAIN, *overrides, *words]
            subprocess.run(command, check=True, capture_output=True)
            rates[wanted].append(read_json(run / "result.json")["tokens_per_s"])
    ratios = [on / off for on, off in zip(rates[True], rates[False], strict=True)]
    listed = ", ".join(f"{ratio:.3f}" for ratio in ratios)
    return f"tokens/s with deterministic mode over without: {statistics.median(ratios):.3f} (pairs {listed})"


def main() -> None:
    """Measure and print."""
    flag = "--deterministic"
    overrides = [word for word in sys.argv[1:] if word != flag]
    with tempfile.TemporaryDirectory(prefix="rope_exp-bench-") as folder:
        print(
            deterministic(overrides, folder)
            if flag in sys.argv
            else "\n".join(shares(overrides, folder))
        )


if __name__ == "__main__":
    main()
