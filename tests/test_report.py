"""From run folders to the table: what stands in it, what is refused, and that the same runs give the same bytes."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from rope_exp.compose import run_config
from rope_exp.config import RunConfig
from rope_exp.record import MetricsWriter, write_config, write_json

BUDGET = ("train.num_steps=500", "train.global_batch_size=16", "train.seq_len=256", "train.eval_every=50")


@cache
def _config(overrides: tuple[str, ...]) -> RunConfig:
    return run_config([*BUDGET, *overrides])


def write_run(
    runs: Path,
    pe: str,
    seed: int = 0,
    loss: float | None = 3.5,
    *,
    group: str = "g",
    steps: int | None = None,
    overrides: Iterable[str] = (),
    result: Mapping[str, Any] | None = None,
    env: Mapping[str, Any] | None = None,
) -> Path:
    """A run folder as the worker leaves it: finished at `loss`; or, without a loss, at `steps`, cut off or diverged.

    `result` replaces keys of result.json; without a loss, giving it (even {}) makes the run a diverged one.
    """
    config = _config((pe if "=" in pe else f"pe={pe}", f"seed={seed}", f"run.group={group}", *overrides))
    folder = runs / group / config.pe.label / f"seed{seed}"
    folder.mkdir(parents=True)
    write_config(folder, config)
    num_steps = config.train.num_steps
    last = num_steps if steps is None else steps
    noise = np.random.default_rng(seed)
    writer = MetricsWriter(folder, 0)
    for step in range(10, last + 1, 10):
        shape = 4.0 * (np.exp(-step / 40) + np.exp(-5 * step / num_steps) / 2)
        value = (loss or 3.6) + float(shape - 2.0 * np.exp(-5.0))
        row = {"step": step, "tokens": step * 4096, "train/loss": value - 0.1 + 0.05 * float(noise.normal())}
        if step % 50 == 0:
            row["val/loss"] = loss if step == num_steps and loss is not None else value
        writer.write({**row, "lr": 1e-3})
    writer.close()
    if env is not None:
        write_json(folder / "env.json", env)
    if loss is None and result is None:
        return folder
    finished = loss is not None
    write_json(
        folder / "result.json",
        {
            "status": "finished" if finished else "diverged",
            "pe": config.pe.label,
            "rotate": list(config.pe.rotate),
            "seed": seed,
            "params": 1328256,
            "tokens": last * 4096,
            "steps": last,
            "val/loss": loss,
            "train/loss_last": 3.4,
            "init_sha256": _sha256(f"init {seed}"),
            "data_sha256": _sha256("data"),
            "order_sha256": _sha256(f"order {seed} {last}"),
            "config_sha256": config.config_sha256,
            "group_sha256": config.group_sha256,
            "tokens_per_s": 30000.0,
            "mfu": None,
            "wall_s": 80.0,
            **({} if finished else {"diverged_step": last + 1}),
            **(result or {}),
        },
    )
    return folder


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
