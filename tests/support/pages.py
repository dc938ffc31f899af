"""Tables of recorded runs for tests of the report's page."""

from dataclasses import replace

from rope_exp.report import Report, build
from support.records import report_on, runs_of

HOSTILE = "</script><img src=x onerror=document.title='taken'>"


def make_tables() -> dict[str, Report]:
    """Return the tables of two campaigns: nine variants, and a few at two budgets."""
    tables = {}
    for steps in (1000, 2000):
        runs = [run for run in runs_of("tokens") if run.factors["train.num_steps"] == steps]
        tables[f"tokens/train.num_steps={steps}"] = build(runs, ["pe"])
    tables["english"] = report_on("english")
    return tables


def make_hostile() -> dict[str, Report]:
    """Return a table in which a row, the corpus and the runs have names with markup."""
    runs = []
    for run in runs_of("english", "qk_rope", "vo_rope", seeds=(0, 1)):
        data = replace(run.config.data)
        object.__setattr__(data, "name", HOSTILE)
        config = replace(run.config, data=data)
        runs.append(replace(run, config=config, where=f"{run.where}{HOSTILE}"))
    report = build(runs, ["pe"])
    row = replace(report.rows["vo_rope"], name=HOSTILE)
    return {"english": replace(report, rows={**report.rows, "vo_rope": row})}
