"""Contenders side by side: each in a process of its own, a few steps of one after a few steps of the other.

What the machine does meanwhile then falls on all alike. Of each round the ratio to the first contender is taken, and of
all rounds the median: a ratio is worth more than either of its rates.
"""

import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from rope_exp.config.run import RunConfig
from rope_exp.data.batches import Batches
from rope_exp.data.meta import Prepared
from rope_exp.data.prepare import prepare
from rope_exp.system.console import say

ARMS = Path(__file__).with_name("arms.py")
NUM_WINDOWS = 512  # of the corpus, at the least, that peers train on, again and again
END_SECONDS = 20.0


@dataclass(frozen=True)
class Entry:
    """One contender: the arm of arms.py, on a config, with an interpreter."""

    arm: str
    config: RunConfig
    python: str = sys.executable
    vocab_size: int | None = None  # None: of the prepared corpus; larger: for its cost alone
    environment: Mapping[str, str] = field(default_factory=dict)


def race(
    entries: Mapping[str, Entry], *, rounds: int, steps: int, warmup: int = 3
) -> dict[str, Any]:
    """Let all entries train in turn.

    Args:
        steps: of each entry in each round.
        warmup: steps after the first, unmeasured.
    Returns:
        By entry: setup_s, first_step_s, step_s (median, quartiles), tokens_per_s, peak_bytes, and times_as_slow, the
        median and quartiles over rounds of its step time divided by the first entry's.
    """
    with tempfile.TemporaryDirectory() as folder:
        runners: dict[str, _Runner] = {}
        try:
            for name, entry in entries.items():
                say(f"  {name}: setting up")
                runners[name] = _Runner(entry, Path(folder, f"{len(runners)}"))
                runners[name].begin(warmup)
            for number in range(rounds):
                order = list(runners)[
                    :: -1 if number % 2 else 1
                ]  # neither always follows the same one
                for name in order:
                    runners[name].step_s.append(runners[name].take(steps))
        finally:
            for runner in runners.values():
                runner.end()
    first = next(iter(runners.values())).step_s
    return {name: runner.summary(first) for name, runner in runners.items()}


class _Runner:
    def __init__(self, entry: Entry, folder: Path) -> None:
        folder.mkdir()
        config = entry.config
        prepared = prepare(config.data, config.tokenizer, seq_len=config.train.seq_len)
        spec = folder / "spec.json"
        size = entry.vocab_size or prepared.vocab_size
        spec.write_text(
            json.dumps(_spec(config, prepared, size, folder / "windows.npy")), encoding="utf-8"
        )
        self.tokens_per_step = config.train.global_batch_size * config.train.seq_len
        self.log = (folder / "log").open("wb+")
        self.process = subprocess.Popen(
            [entry.python, str(ARMS), str(spec), entry.arm],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
            env={**os.environ, **_environment(), **entry.environment},
        )
        self.arm = entry.arm
        self.step_s: list[float] = []
        self.setup_s = self.first_step_s = 0.0
        self.peak_bytes = 0

    def begin(self, warmup: int) -> None:
        """Wait until it is set up; the first step, which compiles, and some more."""
        self.setup_s = self._answer()["setup_s"]
        self.first_step_s = self.take(1)
        self.take(warmup)

    def take(self, steps: int) -> float:
        """Seconds a step."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended, as its missing answer tells
            self.process.stdin.write(f"{steps}\n")
            self.process.stdin.flush()
        answer = self._answer()
        self.peak_bytes = int(answer["peak_bytes"])
        return answer["step_s"]

    def _answer(self) -> dict[str, float]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            self.log.seek(0)
            raise RuntimeError(
                f"{self.arm} ended:\n{self.log.read().decode(errors='replace')[-3000:]}"
            )
        answer: dict[str, float] = json.loads(line)
        return answer

    def end(self) -> None:
        """Whatever state it is in."""
        assert self.process.stdin is not None and self.process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        try:
            self.process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()
        self.log.close()

    def summary(self, first: list[float]) -> dict[str, Any]:
        ratios = [own / other for own, other in zip(self.step_s, first, strict=True)]
        median = statistics.median(self.step_s)
        return {
            "setup_s": self.setup_s,
            "first_step_s": self.first_step_s,
            "step_s": quartiles(self.step_s),
            "tokens_per_s": self.tokens_per_step / median,
            "times_as_slow": quartiles(ratios),
            "peak_bytes": self.peak_bytes,
            "rounds": len(self.step_s),
        }


def _environment() -> dict[str, str]:
    # One GPU, whatever there are: a Trainer in one process would spread over all, with a batch for each.
    gpu = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    return {"CUDA_VISIBLE_DEVICES": gpu, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}


def quartiles(values: list[float]) -> list[float]:
    """The lower quartile, the median and the upper quartile."""
    return [float(value) for value in np.quantile(values, (0.25, 0.5, 0.75))]


def _spec(config: RunConfig, prepared: Prepared, vocab_size: int, windows: Path) -> dict[str, Any]:
    train, model = config.train, config.model
    num_windows = max(NUM_WINDOWS, train.global_batch_size)
    batches = Batches(prepared.train, seed=0, batch_size=num_windows, seq_len=train.seq_len)
    np.save(windows, batches.ids(1))
    shape = {
        key: getattr(model, key)
        for key in (
            "hidden_size",
            "intermediate_size",
            "num_hidden_layers",
            "num_attention_heads",
            "num_key_value_heads",
            "rms_norm_eps",
            "tie_word_embeddings",
        )
    }
    return {
        "config": config.to_dict(),
        "model": shape,
        "vocab_size": vocab_size,
        "batch": train.global_batch_size,
        "micro": train.micro_batch_size or train.global_batch_size,
        "seq_len": train.seq_len,
        "precision": train.precision,
        "device": config.launch.device,
        "windows": str(windows),
    }
