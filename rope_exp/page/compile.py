"""Collection of all figures of a report, and its table beside another campaign's rows."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from types import ModuleType

from rope_exp.comparable import (
    OWN_RATE,
    SEEDS,
    alike,
    check_blocks,
    has_blocks,
    level_name,
    telling,
)
from rope_exp.content import Report, build, by_own_deviation
from rope_exp.errors import RecordError, log
from rope_exp.figures._style import Draw, drawn
from rope_exp.figures.cached import cached
from rope_exp.figures.curves import curves
from rope_exp.figures.distance import distance
from rope_exp.figures.forest import forest
from rope_exp.figures.grid import grid
from rope_exp.figures.probes import probes
from rope_exp.files import write_atomically
from rope_exp.frames import load_table
from rope_exp.page.page import page
from rope_exp.published import REFERENCE
from rope_exp.records import read_records, recorded_campaigns
from rope_exp.report import (
    csv_table,
    markdown,
    markdown_of_seeds,
    pairs_table,
    plain_table,
    tex_table,
)
from rope_exp.runs import ReportError, Run, find_groups, read_runs
from rope_exp.words.answers import answers_csv
from rope_exp.words.probed import extension_csv, probes_csv
from rope_exp.words.sentences import code_notes, left_out_notes, reference_notes, summary


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


PAGE = "report.html"


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
    files = _table_files(report)
    files[PAGE] = page({".": report}, report.runs)
    if factors != ("pe",):
        for study in _studies():
            if hasattr(study, "of_group"):
                files |= study.of_group(report.runs)
    _write_all(out, files)
    said = [
        plain_table(report),
        summary(report),
        *reference_notes(report),
        *code_notes(report),
        *left_out_notes(report),
    ]
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
        found = tables_of(read[each])
        for level, report in sorted(found.items()):
            place = str(Path(each, level))
            tables[place] = report
            made |= _below(place, _table_files(report))
            # A table without the reference is joined with another campaign that has it.
            if (joined := beside(report.runs, others)) is not None:
                made |= _below(f"{place}/beside", _table_files(joined))
            if (joined := all_seeds(report, others)) is not None:
                made[f"{place}/all_seeds.md"] = markdown_of_seeds(joined).encode()

    for study in _studies():
        made |= study.files(asked, read, tables)
    if name is None:
        made[PAGE] = page(tables, [run for runs in read.values() for run in runs])
    _write_all(out, made)
    return [str(out / file) for file in made]


def _studies() -> list[ModuleType]:
    """Import every study, in the order of their names."""
    package = import_module("rope_exp.studies")
    found = sorted(module.name for module in iter_modules(package.__path__))
    return [import_module(f"{package.__name__}.{name}") for name in found]


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


def _table_files(report: Report) -> dict[str, bytes]:
    figures = of_report(report)
    files = {
        "table.md": markdown(report, list(figures)).encode(),
        "table.csv": csv_table(report).encode(),
        "table.tex": tex_table(report).encode(),
    }
    if found := answers_csv(report):
        files["answers.csv"] = found.encode()
    if report.pairs:
        files["pairs.csv"] = pairs_table(report).encode()
    if asked := probes_csv(report):
        files["probes.csv"] = asked.encode()
    if extensions := extension_csv(report):
        files["extension.csv"] = extensions.encode()
    return files | figures


def _below(folder: str, files: Mapping[str, bytes]) -> dict[str, bytes]:
    return {f"{folder}/{name}": content for name, content in files.items()}


def _write_all(out: Path, files: Mapping[str, bytes]) -> None:
    for name, content in files.items():
        path = out / name
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, content)
