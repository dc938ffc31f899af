"""Builders of run folders that look like the worker's, without training."""

import csv
import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rope_exp.commands.report import find_groups
from rope_exp.comparable import Row, row_factors, rows_of
from rope_exp.config import RunConfig
from rope_exp.files import json_sha256, read_json, write_json
from rope_exp.folder import MetricsWriter, Run, read_config, read_runs, write_config
from rope_exp.page import page
from rope_exp.report import build, parts, table_csv, table_md
from support.configs import composed

BUDGET = (
    "train.num_steps=500",
    "train.global_batch_size=16",
    "train.seq_len=256",
    "train.eval_every=50",
)
TOKENS_PER_STEP = 16 * 256

# Examples of the content of result.json.
FINISHED: dict[str, Any] = {
    "status": "finished",
    "pe": "vo_rope",
    "rotate": ["v", "o"],
    "seed": 3,
    "params": 1,
    "tokens": 192,
    "steps": 3,
    "val/loss": 4.5,
    "train/loss_last": 2.0,
    "tokens_per_s": None,
    "mfu": None,
    "wall_s": 1.0,
    **{f"{what}_sha256": "0" * 64 for what in ("init", "data", "order", "config", "group")},
}
DIVERGED = FINISHED | {"status": "diverged", "val/loss": None, "diverged_step": 4}


def config_of(*overrides: str) -> RunConfig:
    return composed(*BUDGET, *overrides)


def sha256_of(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def make_run(
    runs: Path,
    *,
    pe: str = "qk_rope",
    seed: int = 0,
    loss: float | None = 3.5,
    group: str = "g",
    steps: int | None = None,
    overrides: Iterable[str] = (),
    result: Mapping[str, Any] | None = None,
    env: Mapping[str, Any] | None = None,
) -> Path:
    """Write and return the folder of a run that finished at `loss`, or was interrupted at `steps`.

    Args:
        pe: a choice of configs/pe, or an override such as pe.rotate=[q,v].
        result: replaces keys of result.json; if `loss` is None, it (even {}) makes the run diverge.
    """
    variant = pe if "=" in pe else f"pe={pe}"
    config = replace(config_of(variant, *overrides), seed=seed).replace("run", group=group)
    folder = runs / group / config.pe.label / f"seed{seed}"
    folder.mkdir(parents=True)
    write_config(folder, config)
    if env is not None:
        always = {"marks": [], "started": [], "certificate": {"norm": 0.0}}
        write_json(folder / "env.json", {**always, **env})

    num_steps = config.train.num_steps
    last_step = num_steps if steps is None else steps
    last_loss = _write_curve(folder, loss, last_step, num_steps)
    if loss is None and result is None:
        return folder

    ended = {} if loss else {"status": "diverged", "diverged_step": last_step + 1}
    facts = {
        "pe": config.pe.label,
        "rotate": list(config.pe.rotate),
        "seed": seed,
        "tokens": config.train.tokens_until(last_step),
        "steps": last_step,
        "val/loss": loss,
        "train/loss_last": last_loss,
        "init_sha256": sha256_of(f"init {seed}"),
        "order_sha256": sha256_of(f"order {seed} {last_step}"),
        "config_sha256": config.config_sha256,
        "group_sha256": config.group_sha256,
        "tokens_per_s": 30000.0,
        "wall_s": 80.0,
    }
    write_json(folder / "result.json", FINISHED | ended | facts | dict(result or {}))
    return folder


def ask(folder: Path, answers: Mapping[str, Any]) -> None:
    """Write answers to probes, which the run's config then names."""
    write_config(folder, read_config(folder).replace("train", probes=tuple(answers)))
    write_json(folder / "probes.json", answers)
    result = read_json(folder / "result.json") | {"probes_sha256": json_sha256(dict(answers))}
    write_json(folder / "result.json", result)


def judge(runs: Sequence[Run]) -> None:
    """Build every output of a report on some runs, except images."""
    report = build(runs, row_factors(runs))
    table_md(report)
    table_csv(report)
    for _, part in parts("notes", "probes"):
        part.files(report)
    assert not report.charts
    page({runs[0].group: report}, runs)


def begun_from(weights: str) -> dict[str, Any]:
    """Return arguments of `make_run` for a run that started from these weights."""
    origin = {"pe": "qk_rope", "seed": 0, "step": 500, "config_sha256": sha256_of("config")}
    return {
        "overrides": [f"init_weights={weights}"],
        "result": {"init_sha256": sha256_of(f"init of {weights}")},
        "env": {"init_from": {**origin, "weights_sha256": weights}},
    }


def _write_curve(folder: Path, loss: float | None, last_step: int, num_steps: int) -> float:
    """Write a curve that falls to `loss`; return its last training loss."""
    writer = MetricsWriter(folder)
    for step in range(10, last_step + 1, 10):
        value = (loss or 3.6) + 4.0 * math.exp(-step / 40)
        row = {
            "step": step,
            "tokens": step * TOKENS_PER_STEP,
            "train/loss": value - 0.1,
            "lr": 1e-3,
        }
        if step % 50 == 0:
            row["val/loss"] = loss if step == num_steps and loss is not None else value
        writer.write(row)
    writer.close()
    last_loss: float = writer.last["train/loss"]
    return last_loss


def compared(runs: Path, *, keys: tuple[str, ...] = ("pe",)) -> dict[str, Row]:
    return rows_of(all_runs(runs), keys)


def all_runs(runs: Path) -> list[Run]:
    return read_runs(find_groups(runs, None, several=True))[0]


def table_rows(folder: Path, by: str = "pe") -> dict[str, dict[str, str]]:
    with (folder / "table.csv").open(encoding="utf-8", newline="") as file:
        return {row[by]: row for row in csv.DictReader(file)}
