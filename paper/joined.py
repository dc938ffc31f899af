"""A campaign's tables joined with other campaigns: with further seeds, or with the reference."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from rope_exp.comparable import REFERENCE, ROW_RATE, check_blocks
from rope_exp.folder import ReportError, Run
from rope_exp.notes.verdicts import relations
from rope_exp.rates import alike
from rope_exp.report import Report, build, files_of, main_table
from rope_exp.tables import bullets, paragraphs

# The campaigns of the later protocols, which judged by paired tests from the beginning.
PAIRED = (
    "rates_26m",
    "nine_26m",
    "shift_26m",
    "qk_rate_26m",
    "place_26m",
    "muon_26m",
    "long_100m",
    "lead_26m",
    "open_26m",
    "nine_10m",
    "nine_books_26m",
)


def files(
    campaigns: Collection[str], records: Mapping[str, Sequence[Run]], tables: Mapping[str, Report]
) -> dict[str, bytes]:
    """Return all_seeds.md, and the files beside/, below the folder of each campaign's table.

    Args:
        campaigns: not used; `tables` has theirs.
        records: the runs of every campaign.
        tables: the campaigns' tables, by folder.
    Returns:
        The files by their paths.
    """
    files: dict[str, bytes] = {}
    for place, report in tables.items():
        campaign = place.partition("/")[0]
        others = [run for name, runs in records.items() if name != campaign for run in runs]
        with_seeds = all_seeds(report, others)
        if with_seeds is not None:
            files[f"{place}/all_seeds.md"] = all_seeds_md(with_seeds).encode()
        joined = beside(report.runs, others)
        if joined is not None:
            of_table = files_of(joined, figures=False)
            files |= {f"{place}/beside/{file}": content for file, content in of_table.items()}
    return files


def all_seeds(report: Report, others: Iterable[Run]) -> Report | None:
    """Return a table joined with other campaigns' runs that differ from its own in the seed alone.

    Campaigns that try several learning rates are left out, as their seeds chose a rate. None if no
    run fits, or the table's campaign is of the first protocol, which tests its own seeds alone.
    """
    if len(report.rows) < 2 or not report.of_variants or report.groups not in PAIRED:
        return None

    runs = {(run.config.pe.label, run.config.seed): run for run in report.runs}
    for run in others:
        row = report.rows.get(run.config.pe.label)
        if row is None or ROW_RATE in run.factors or run.config.row_name is not None:
            continue
        if alike(row.runs[0], run, ("seed",)):
            runs.setdefault((row.label, run.config.seed), run)
    if len(runs) == len(report.runs):
        return None

    joined = build(list(runs.values()), ["pe"])
    # A published relation without further seeds is decided in the campaign's own table.
    by_pair = ["a", "b", "num_seeds"]
    before = report.pairs["published"].set_index(by_pair)
    after = joined.pairs["published"].set_index(by_pair, drop=False)
    published = after.drop(before.index, errors="ignore")
    return replace(joined, pairs={**joined.pairs, "published": published})


def all_seeds_md(report: Report) -> str:
    """Return all_seeds.md of a table with further seeds: exploratory, so rows have no verdict."""
    title = (
        "Published relations with further seeds (Δ: the second variant's loss minus the "
        "first's; p by Holm over all published relations):"
    )
    of_report = relations(report)
    return paragraphs(
        *(f"**{caption}**" for caption in report.texts("caption")),
        "Exploratory: no verdict rests on this table. It adds other campaigns' seeds of the same "
        "configurations to those of [the campaign's own](table.md).",
        main_table(report).without("p", "marked").markdown(),
        *([title, *of_report] if of_report else []),
        *bullets("Notes:", report.texts("notes")),
    )


def beside(runs: Sequence[Run], others: Iterable[Run]) -> Report | None:
    """Return the report of a level without the reference, joined with a campaign that has it.

    If several have it, only the one with the most runs is used, as a table of all would change
    with each of them. None if the level has the reference, no campaign fits, or they may not share
    a table.
    """
    variants = {run.config.pe.label for run in runs}
    if REFERENCE in variants:
        return None
    groups: dict[str, dict[tuple[str, int], Run]] = {}
    for run in others:
        label = run.config.pe.label
        is_new = run.config.row_name is None and label not in variants
        if is_new and alike(runs[0], run, ("pe", "seed")):
            groups.setdefault(run.group, {}).setdefault((label, run.config.seed), run)
    fitting = [cells for _, cells in sorted(groups.items()) if REFERENCE in dict(cells.keys())]
    if not fitting:
        return None

    together = [*runs, *max(fitting, key=len).values()]
    try:
        check_blocks(together)
        joined = build(together, ["pe"])
    except ReportError:
        return None
    # Published relations between the others' rows are judged in their own table.
    return replace(joined, pairs={**joined.pairs, "published": joined.pairs["published"].head(0)})
