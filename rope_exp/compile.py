"""Which tables runs and campaigns have, and the writing of all files of a report."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from rope_exp.comparable import (
    OWN_RATE,
    SEEDS,
    alike,
    check_blocks,
    has_blocks,
    level_name,
    telling,
)
from rope_exp.errors import RecordError, log
from rope_exp.files import write_atomically
from rope_exp.frames import load_table
from rope_exp.published import REFERENCE
from rope_exp.records import read_records, recorded_campaigns
from rope_exp.report import (
    Report,
    all_seeds_md,
    build,
    is_always_paired,
    pairs_csv,
    parts,
    plain_table,
    table_csv,
    table_md,
    table_tex,
)
from rope_exp.runs import ReportError, Run, find_groups, read_runs


def tables_of(runs: Sequence[Run]) -> dict[str, Report]:
    """Return a campaign's tables by folder: one for each value of its factors, row and seeds apart.

    If a table has several kinds of attention, each kind's variants get a further table. A campaign
    without blocks has no table.

    Raises:
        ReportError: the runs may not share a table.
    """
    if not has_blocks(runs):
        return {}
    levels: dict[str, list[Run]] = {}
    for run in runs:
        keys = [key for key in run.factors if key not in SEEDS]
        levels.setdefault(level_name(run, keys), []).append(run)

    tables: dict[str, Report] = {}
    for level, found in levels.items():
        check_blocks(found)
        tables[level] = build(found, telling(found))
        for kind, of_kind in _kinds_of(found).items():
            tables["-".join(filter(None, [level, f"attn={kind}"]))] = build(of_kind, ["pe"])
    return tables


def _kinds_of(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Return the runs of each kind of attention by its label, for a table with named rows.

    Includes only kinds with at least two variants, all of one size, each once.
    """
    if telling(runs) == ["pe"]:
        return {}
    kinds: dict[str, list[Run]] = {}
    for run in runs:
        kinds.setdefault(run.config.attn.label, []).append(run)
    return {
        label: found
        for label, found in sorted(kinds.items())
        if len({run.config.pe.label for run in found}) > 1
        and all(run.config.model == found[0].config.model for run in found)
        and len({(run.config.pe.label, run.config.seed) for run in found}) == len(found)
    }


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


# -- files -----------------------------------------------------------------------------------------


def write(
    runs: Path,
    group: str | None,
    out: Path,
    reference: str | None = None,
    factors: tuple[str, ...] = ("pe",),
    *,
    replace: bool = True,
) -> list[str]:
    """Read <runs>/<group>/<pe>/seed<k>, check, and only then write below `out`.

    Args:
        runs: the folder that holds groups of runs.
        group: the group's name; None: the only group. If rows are not variants, this is a pattern
            for several groups, where * matches anything; None: all groups.
        out: the folder for table.md, table.csv, table.tex, figures/ and report.html.
        reference: the row that others are compared with; None: the default of `build`.
        factors: the factors that distinguish rows: pe, or keys such as optim.lr.
        replace: whether the table of another group may be replaced.
    Returns:
        The lines to print.
    Raises:
        RecordError: a file cannot be read, or runs may not share a table; nothing is written.
        ReportError: the only factor is the seed, or another group's table may not be replaced.
        OSError: writing failed.
    """
    try:
        found, left_out = read_runs(find_groups(runs, group, several=factors != ("pe",)))
    except OSError as error:
        raise RecordError(str(error)) from error

    keys = [factor for factor in factors if factor != "seed"]
    if not keys:
        raise ReportError("--factors seed: rows need another factor besides the seed, such as pe")
    report = build(found, keys, reference, left_out)
    if not replace:
        _check_group(out, report)
    files = _files_of(report) | _pages({".": report}, report.runs)
    if factors != ("pe",):
        for of_group in parts("of_group", "studies").values():
            files |= of_group(report.runs)
    _write_all(out, files)
    said = [plain_table(report), *report.told("summary"), *report.told("warnings")]
    return [*said, "", *(str(out / name) for name in files)]


def _check_group(out: Path, report: Report) -> None:
    """Refuse to replace the table of another group.

    Raises:
        ReportError: it is another group's.
    """
    try:
        theirs = set(load_table(out)["group"].astype(str))
    except ReportError:
        return
    ours = {row.runs[0].group for row in report.rows.values()}
    if theirs != ours:
        raise ReportError(
            f"{out / 'table.csv'} is the table of group {', '.join(sorted(theirs))}; pass "
            "--out FOLDER to keep it, or --force to replace it"
        )


def write_campaigns(records: Path, name: str | None, out: Path) -> list[str]:
    """Rebuild a campaign's files from its records, in <out>/<name>.

    Args:
        records: the folder with the records of all campaigns.
        name: the campaign's name; None: every campaign with records, and the files about all of
            them (the page, and the studies of several campaigns).
    Returns:
        The lines to print.
    Raises:
        RecordError: a record does not verify, or there is none; nothing is written.
        OSError: writing failed.
    """
    names = recorded_campaigns(records)
    if not names:
        raise ReportError(
            f"{records} holds no campaign records; `rope-exp campaign NAME` creates them"
        )
    if name is not None and name not in names:
        there = ", ".join(names)
        raise ReportError(f"{records} holds no records of campaign {name}. Available: {there}")

    # Make all files before writing any. A table may include another campaign's rows.
    read = {each: read_records(records, each) for each in names}
    asked = names if name is None else [name]
    tables: dict[str, Report] = {}
    made: dict[str, bytes] = {}
    for each in asked:
        log(f"{each}: {len(read[each])} records")
        others = [run for other in names if other != each for run in read[other]]
        for level, report in sorted(tables_of(read[each]).items()):
            place = str(Path(each, level))
            tables[place] = report
            made |= _below(place, _files_of(report))
            # A table without the reference is joined with another campaign that has it.
            if (joined := beside(report.runs, others)) is not None:
                made |= _below(f"{place}/beside", _files_of(joined))
            if (joined := all_seeds(report, others)) is not None:
                made[f"{place}/all_seeds.md"] = all_seeds_md(joined).encode()

    for files in parts("files", "studies").values():
        made |= files(asked, read, tables)
    if name is None:
        made |= _pages(tables, [run for runs in read.values() for run in runs])
    _write_all(out, made)
    return [str(out / file) for file in made]


def _files_of(report: Report) -> dict[str, bytes]:
    """Return the files of a table."""
    figures = {f"figures/{name}.svg": svg for name, svg in report.charts.items()}
    files = {
        "table.md": table_md(report, list(figures)),
        "table.csv": table_csv(report),
        "table.tex": table_tex(report),
    }
    if report.pairs:
        files["pairs.csv"] = pairs_csv(report)
    for further in parts("files", "words", "probes").values():
        files |= further(report)
    return {name: text.encode() for name, text in files.items()} | figures


def _pages(tables: Mapping[str, Report], runs: Sequence[Run]) -> dict[str, bytes]:
    """Return the pages of all tables, by folder, and of all runs on record."""
    pages = parts("page", "page")
    return {f"{name}.html": page(tables, runs) for name, page in pages.items()}


def _below(folder: str, files: Mapping[str, bytes]) -> dict[str, bytes]:
    return {f"{folder}/{name}": content for name, content in files.items()}


def _write_all(out: Path, files: Mapping[str, bytes]) -> None:
    for name, content in files.items():
        path = out / name
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, content)
