"""Builders of runs and tables for tests of the report's page, all in memory."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from rope_exp.config.run import RunConfig
from rope_exp.config.variants import PeConfig
from rope_exp.evidence.runs import Run
from rope_exp.plan.compose import run_config
from rope_exp.report.content import Report, build
from support.configs import NINE
from support.records import ENV, nine_losses
from support.reports import BUDGET, sha256_of

HOSTILE = "</script><img src=x onerror=document.title='taken'>"


@cache
def _base() -> RunConfig:
    return run_config([*BUDGET])


def rotation(label: str) -> PeConfig:
    """Return the variant with this label, whose sites are the letters before the underscore."""
    sites = label.removesuffix("_rope") if label.endswith("_rope") else ""
    return PeConfig(rotate=tuple(site for site in "qkvo" if site in sites))  # type: ignore[misc]


def make_run(
    campaign: str,
    pe: PeConfig,
    seed: int,
    loss: float,
    *,
    factors: Mapping[str, Any] | None = None,
    env: Mapping[str, Any] | None = None,
    **train: Any,
) -> Run:
    """Return a finished run of a campaign.

    Args:
        factors: the run's factors besides the seed.
        env: replaces keys of its environment.
        train: replaces keys of its `train` section; the key `corpus` replaces the corpus's name.
    """
    base = _base()
    data = replace(base.data, name=train.pop("corpus", "text"))
    config = replace(base, pe=pe, seed=seed, data=data, train=replace(base.train, **train))
    steps = config.train.num_steps
    per_step = config.train.tokens_per_step
    curve = [(steps * part // 10, loss + 2.0 / part - 0.2) for part in range(1, 11)]
    result = {
        "status": "finished",
        "pe": pe.label,
        "rotate": list(pe.rotate),
        "seed": seed,
        "params": 1328256,
        "tokens": steps * per_step,
        "steps": steps,
        "val/loss": loss,
        "init_sha256": sha256_of(f"init {seed}"),
        "data_sha256": sha256_of(data.name),
        "order_sha256": sha256_of(f"order {seed} {steps}"),
        "config_sha256": config.config_sha256,
        "group_sha256": config.group_sha256,
        "wall_s": 90.0,
    }
    name = "-".join([pe.label, *(f"{k}={v}" for k, v in (factors or {}).items()), f"s{seed}"])
    return Run(
        folder=Path(name),
        config=config,
        result=result,
        metrics=[
            {
                "step": step,
                "tokens": step * per_step,
                "train/loss": value + 0.05,
                "val/loss": value,
            }
            for step, value in curve
        ],
        env={"marks": [], "started": ["2026-01-02T03:04:05Z"], **ENV, **(env or {})},
        where=f"{campaign}/{name}",
        group=campaign,
        row=pe.label,
        factors={"seed": seed, **(factors or {})},
    )


def make_runs(
    campaign: str,
    rows: Iterable[str] = NINE,
    seeds: Iterable[int] = (0, 1, 2),
    *,
    shift: float = 0.0,
    **more: Any,
) -> list[Run]:
    """Return one run per row and seed, with losses in the published order."""
    seeds = list(seeds)
    found = []
    for row in rows:
        for seed in seeds:
            loss = nine_losses(row, seed) + shift
            found.append(make_run(campaign, rotation(row), seed, loss, **more))
    return found


def make_tables() -> dict[str, Report]:
    """Return the tables of two campaigns: nine variants, and four at two budgets."""
    few = ("qk_rope", "vo_rope", "nope", "k_rope")
    tables = {}
    for steps in (1000, 2000):
        more = {"factors": {"train.num_steps": steps}, "num_steps": steps}
        runs = make_runs("tokens", few, (0,), shift=-0.4, **more)
        tables[f"tokens/train.num_steps={steps}"] = build(runs, ["pe"])
    tables["nine"] = build(make_runs("nine"), ["pe"])
    return tables


def make_hostile() -> dict[str, Report]:
    """Return a table in which a row, the corpus and the runs have names with markup.

    A config refuses such names, so this sets them without its check.
    """
    runs = []
    for run in make_runs("nine", ("qk_rope", "vo_rope"), (0, 1)):
        object.__setattr__(run.config.data, "name", HOSTILE)
        runs.append(replace(run, where=f"{run.where}{HOSTILE}"))
    report = build(runs, ["pe"])
    row = replace(report.rows["vo_rope"], name=HOSTILE)
    return {"nine": replace(report, rows={**report.rows, "vo_rope": row})}
