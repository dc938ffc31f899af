"""Stored records for tests of reports: read once, changed in memory, or copied and edited."""

import itertools
import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from rope_exp.campaign.records import canonical, cell_name, digest, read_records, stored_records
from rope_exp.files import text_sha256
from rope_exp.folder import Run
from rope_exp.report import Report, build
from support.configs import RECORDED


@cache
def _recorded(records: Path, campaign: str) -> list[Run]:
    runs = read_records(records, campaign)
    assert runs, f"{records} holds no records of {campaign}"
    return runs


def runs_of(
    campaign: str, *rows: str, seeds: Iterable[int] | None = None, records: Path = RECORDED
) -> list[Run]:
    """Return the recorded runs of a campaign, or those of some of its rows and seeds.

    Each row must have a run at each of the seeds: a test of fewer runs could pass for no reason.
    """
    runs = _recorded(records, campaign)
    rows = rows or tuple({run.row for run in runs})
    wanted = {run.config.seed for run in runs} if seeds is None else set(seeds)
    found = [run for run in runs if run.row in rows and run.config.seed in wanted]
    there = {(run.row, run.config.seed) for run in found}
    assert {row for row, _ in there} == set(rows), f"{campaign} lacks one of {rows}"
    if seeds is not None:
        missing = set(itertools.product(rows, wanted)) - there
        assert not missing, f"{campaign} lacks {missing}"
    return found


def at_seed(run: Run, seed: int) -> Run:
    """Return a run as if another seed had given it: runs of one seed share weights and tokens."""
    factors = {**run.factors, "seed": seed}
    shared = {"init_sha256", "shared_init_sha256", "order_sha256"} & run.result.keys()
    return replace(
        run,
        config=replace(run.config, seed=seed),
        result=run.result | {key: text_sha256(f"{key} {seed}") for key in shared},
        factors=factors,
        where=f"{run.group}/{cell_name(run.row, factors)}",
    )


def report_on(campaign: str, *rows: str, seeds: Iterable[int] | None = None) -> Report:
    return build(runs_of(campaign, *rows, seeds=seeds), ["pe"])


@cache
def make_tables() -> dict[str, Report]:
    """Return the tables of two campaigns: nine variants, and three at two budgets."""
    tables = {}
    for steps in (1000, 2000):
        runs = [run for run in runs_of("tokens") if run.factors["train.num_steps"] == steps]
        tables[f"tokens/train.num_steps={steps}"] = build(runs, ["pe"])
    tables["english"] = report_on("english")
    return tables


def ended_at(run: Run, loss: float) -> Run:
    return replace(run, result={**run.result, "val/loss": loss})


def diverged(run: Run) -> Run:
    metrics = run.metrics[: len(run.metrics) // 2]
    step = metrics[-1]["step"]
    lost = {"status": "diverged", "val/loss": None, "steps": step, "diverged_step": step + 1}
    return replace(run, result={**run.result, **lost}, metrics=metrics)


def unfinished(run: Run) -> Run:
    return replace(run, result={}, metrics=[])


def copy_records(records: Path, campaign: str, *cells: str) -> list[Path]:
    (records / campaign).mkdir(parents=True, exist_ok=True)
    stored = {path.stem: content for path, content in stored_records(RECORDED, campaign).items()}
    paths = [records / campaign / f"{cell}.json" for cell in cells]
    for path in paths:
        path.write_bytes(stored[path.stem])
    return paths


def edit_record(path: Path, edit: Callable[[dict[str, Any]], Any]) -> None:
    values = json.loads(path.read_text(encoding="utf-8"))
    edit(values)
    path.write_text(canonical(values | {"sha256": digest(values)}), encoding="utf-8")
