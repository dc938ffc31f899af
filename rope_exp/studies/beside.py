"""A campaign's tables without the reference, joined with another campaign that has it."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from rope_exp.comparable import alike, check_blocks
from rope_exp.compile import files_of
from rope_exp.published import REFERENCE
from rope_exp.report import Report, build
from rope_exp.runs import ReportError, Run
from rope_exp.studies._others import others


def files(
    asked: Collection[str], records: Mapping[str, Sequence[Run]], tables: Mapping[str, Report]
) -> dict[str, bytes]:
    """Return the files of the joined tables, below the folder of each campaign's own."""
    found: dict[str, bytes] = {}
    for place, report in tables.items():
        joined = beside(report.runs, others(place, records))
        if joined is not None:
            made = files_of(joined)
            found |= {f"{place}/beside/{file}": content for file, content in made.items()}
    return found


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
    variants = {run.config.pe.label for run in runs}
    groups: dict[str, dict[tuple[str, int], Run]] = {}
    for run in others if REFERENCE not in variants else ():
        label = run.config.pe.label
        is_new = run.config.row_name is None and label not in variants
        if is_new and alike(runs[0], run, ("pe", "seed")):
            groups.setdefault(run.group, {}).setdefault((label, run.config.seed), run)
    fitting = [
        found for _, found in sorted(groups.items()) if REFERENCE in (label for label, _ in found)
    ]
    if not fitting:
        return None

    together = [*runs, *max(fitting, key=len).values()]
    try:
        check_blocks(together)
        joined = build(together, ["pe"])
    except ReportError:
        return None
    # Published relations between the others' rows are judged in their own table.
    return replace(joined, hidden=[(pair["a"], pair["b"]) for pair in joined.relations])
