"""Collection of all figures of a report, and its table beside another campaign's rows."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from rope_exp.evidence.comparable import OWN_RATE, alike, check_blocks
from rope_exp.evidence.published import REFERENCE
from rope_exp.evidence.runs import ReportError, Run
from rope_exp.report.charts.cached import cached
from rope_exp.report.charts.curves import curves
from rope_exp.report.charts.distance import distance
from rope_exp.report.charts.forest import forest
from rope_exp.report.charts.grid import grid
from rope_exp.report.charts.probes import probes
from rope_exp.report.charts.style import Draw, drawn
from rope_exp.report.content import Report, build, by_own_deviation


def of_report(report: Report) -> dict[str, bytes]:
    """Return the files of all figures that a report's runs allow."""
    draws: list[Draw] = [forest, curves, grid, probes, distance]
    if report.of_rows:
        draws.append(cached)
    found = {draw.__name__: drawn(draw, report) for draw in draws}
    return {f"figures/{name}.svg": svg for name, svg in found.items() if svg is not None}


def beside(runs: Sequence[Run], others: Iterable[Run]) -> Report | None:
    """Return the report of a level without the reference, joined with a campaign that has it.

    If several have it, only the one with the most runs is used, as a table of all would change
    with each of them.

    Args:
        runs: the runs of a campaign, alike in all factors except variant and seed.
        others: the runs of other campaigns.
    Returns:
        None if the level has the reference, no campaign with it fits, or they may not share a
        table.
    """
    if any(_is_reference(run) for run in runs):
        return None

    groups: dict[str, list[Run]] = {}
    for run in others:
        if run.config.row_name is None:
            groups.setdefault(run.group, []).append(run)
    fitting = [_neighbours(runs, group) for _, group in sorted(groups.items())]
    found = max((each for each in fitting if any(map(_is_reference, each))), key=len, default=None)
    if found is None:
        return None
    together = [*runs, *found]
    try:
        check_blocks(together)
        # Published relations between the others' rows are judged in their own table.
        return replace(build(together, ["pe"]), relations=())
    except ReportError:
        return None


def all_seeds(report: Report, others: Iterable[Run]) -> Report | None:
    """Return a table joined with other campaigns' runs that differ from its own in the seed alone.

    Campaigns that try several learning rates are left out, as their seeds chose a rate.

    Returns:
        None if no other run fits, a row has no other to be compared with, or the table's campaign
        is of the first protocol, which tests its own seeds alone.
    """
    if len(report.rows) < 2 or not report.of_variants or not by_own_deviation(report.runs):
        return None

    found = {(run.config.pe.label, run.config.seed): run for run in report.runs}
    for run in others:
        row = report.rows.get(run.config.pe.label)
        if row is None or OWN_RATE in run.factors or run.config.row_name is not None:
            continue
        if alike(row.runs[0], run, ("seed",)):
            found.setdefault((row.label, run.config.seed), run)
    if len(found) == len(report.runs):
        return None

    joined = build(list(found.values()), ["pe"])
    before = {(each.judged.a, each.judged.b): each.judged.num_seeds for each in report.relations}
    relations = [
        each
        for each in joined.relations
        if each.judged.num_seeds > before.get((each.judged.a, each.judged.b), 0)
    ]
    return replace(joined, relations=relations)


def _is_reference(run: Run) -> bool:
    return run.config.pe.label == REFERENCE


def _neighbours(runs: Sequence[Run], others: Iterable[Run]) -> list[Run]:
    """Return runs of another campaign, with further variants, that fit in the table of `runs`."""
    variants = {run.config.pe.label for run in runs}
    found: dict[tuple[str, int], Run] = {}
    for run in others:
        label = run.config.pe.label
        if label not in variants and alike(runs[0], run, ("pe", "seed")):
            found.setdefault((label, run.config.seed), run)
    return list(found.values())
