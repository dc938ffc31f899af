"""A campaign's table with further seeds of the same configurations, from other campaigns."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from rope_exp.comparable import OWN_RATE, alike
from rope_exp.report import (
    Report,
    build,
    bullets,
    is_always_paired,
    main_table,
    paragraphs,
    relations_table,
)
from rope_exp.runs import Run
from rope_exp.studies._others import others


def files(
    asked: Collection[str], records: Mapping[str, Sequence[Run]], tables: Mapping[str, Report]
) -> dict[str, bytes]:
    """Return all_seeds.md, below the folder of each campaign's own table."""
    found = {}
    for place, report in tables.items():
        joined = all_seeds(report, others(place, records))
        if joined is not None:
            found[f"{place}/all_seeds.md"] = all_seeds_md(joined).encode()
    return found


def all_seeds(report: Report, others: Iterable[Run]) -> Report | None:
    """Return a table joined with other campaigns' runs that differ from its own in the seed alone.

    Campaigns that try several learning rates are left out, as their seeds chose a rate.

    Returns:
        None if no other run fits, a row has no other to be compared with, or the table's campaign
        is of the first protocol, which tests its own seeds alone.
    """
    if len(report.rows) < 2 or not report.of_variants or not is_always_paired(report.runs):
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
    before = {(pair["a"], pair["b"]): pair["num_seeds"] for pair in report.relations}
    places = {(pair["a"], pair["b"]): pair["num_seeds"] for pair in joined.relations}
    same = [place for place, count in places.items() if count <= before.get(place, 0)]
    return replace(joined, hidden=same)


def all_seeds_md(report: Report) -> str:
    """Return all_seeds.md of a table with further seeds: exploratory, so rows have no verdict."""
    relations = []
    if report.relations:
        relations = [
            "Published relations with further seeds (Δ: the second variant's loss minus the "
            "first's; p by Holm over all published relations):",
            relations_table(report).markdown(),
        ]
    return paragraphs(
        *(f"**{caption}**" for caption in report.told("caption")),
        "Exploratory: no verdict rests on this table. It adds other campaigns' seeds of the same "
        "configurations to those of [the campaign's own](table.md).",
        main_table(report).without("p", "verdict").markdown(),
        *relations,
        *bullets("Notes:", report.told("notes")),
    )
