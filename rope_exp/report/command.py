"""The command `report`: reads run folders or records, and writes tables and figures.

The same runs give the same bytes.
"""

from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from types import ModuleType

from rope_exp.evidence.comparable import check_blocks, has_blocks, level_name, telling
from rope_exp.evidence.frames import load_table
from rope_exp.evidence.records import read_records, recorded_campaigns
from rope_exp.evidence.runs import ReportError, Run, find_groups, read_runs
from rope_exp.plan.campaign_file import SEEDS
from rope_exp.report.answers import answers_csv
from rope_exp.report.content import Report, build
from rope_exp.report.gather import all_seeds, beside, of_report
from rope_exp.report.page import page
from rope_exp.report.pairs import pairs_table
from rope_exp.report.probed import extension_csv, probes_csv
from rope_exp.report.sentences import code_notes, left_out_notes, reference_notes, summary
from rope_exp.report.tables import csv_table, markdown, markdown_of_seeds, plain_table, tex_table
from rope_exp.system.console import log
from rope_exp.system.errors import RecordError
from rope_exp.system.files import write_atomically

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
