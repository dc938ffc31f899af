"""The command `report`: reads run folders or records, and writes tables and figures.

The same runs give the same bytes.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from rope_exp.config.campaign import BASES, PILOT, PRIMARY
from rope_exp.config.campaign_file import SEEDS
from rope_exp.evidence.comparable import check_blocks, telling
from rope_exp.evidence.records import read_records, recorded_campaigns
from rope_exp.evidence.runs import ReportError, Run, find_groups, read_runs
from rope_exp.report.answers import answers_csv
from rope_exp.report.changes import changes_files
from rope_exp.report.content import Report, build
from rope_exp.report.cost import cost_file
from rope_exp.report.levels import kinds_of, level_name
from rope_exp.report.noise import noise_files
from rope_exp.report.page import page
from rope_exp.report.pairs import pairs_table
from rope_exp.report.paper.gather import beside, of_campaign, of_report
from rope_exp.report.probed import extension_csv, probes_csv
from rope_exp.report.scaling import LADDERS, scaling_files
from rope_exp.report.sentences import summary
from rope_exp.report.settings import settings_files
from rope_exp.report.tables import csv_table, markdown, plain_table, tex_table
from rope_exp.system.console import log
from rope_exp.system.errors import RecordError
from rope_exp.system.files import write_atomically

PAGE = "report.html"
COST = "cost.md"


def write(
    runs: Path,
    group: str | None,
    out: Path,
    reference: str | None = None,
    factors: tuple[str, ...] = ("pe",),
) -> list[str]:
    """Read <runs>/<group>/<pe>/seed<k>, check, and only then write below `out`.

    Args:
        runs: the folder that holds groups of runs.
        group: the group's name; None: the only group. If rows are not variants, this is a pattern
            for several groups, where * matches anything; None: all groups.
        out: the folder for table.md, table.csv, table.tex and figures/.
        reference: the row that others are compared with; None: the default of `build`.
        factors: the factors that distinguish rows: pe, or keys such as optim.lr.
    Returns:
        The lines to print.
    Raises:
        RecordError: a file cannot be read, or runs may not share a table; nothing is written.
        ReportError: the only factor is the seed.
        OSError: writing failed.
    """
    try:
        found, left_out = read_runs(find_groups(runs, group, several=factors != ("pe",)))
    except OSError as error:
        raise RecordError(str(error)) from error

    keys = [factor for factor in factors if factor != "seed"]
    if not keys:
        raise ReportError("--factors seed: a row is told by a key or two beside it, such as pe")
    report = build(found, keys, reference, left_out)
    files = _table_files(report)
    _write_all(out, files)
    return [plain_table(report), summary(report), "", *(str(out / name) for name in files)]


def write_campaigns(records: Path, name: str | None, out: Path) -> list[str]:
    """Make a campaign's files again from its records, in <out>/<name>.

    Args:
        records: the folder with the records of all campaigns.
        name: the campaign's name; None: every campaign with records, and the files about all of
            them (page, cost, scaling and settings).
    Returns:
        The lines to print. The last ones name files of an earlier report, which are not removed.
    Raises:
        RecordError: a record does not verify, or there is none; nothing is written.
        OSError: writing failed.
    """
    names = recorded_campaigns(records)
    if not names:
        raise ReportError(
            f"{records} holds no record of any campaign; `rope-exp campaign NAME` makes them"
        )
    if name is not None and name not in names:
        there = ", ".join(names)
        raise ReportError(f"{records} holds no record of a campaign {name}; it holds {there}")

    # Make all files before writing any. A campaign's ladder may include another's runs.
    read = {each: read_records(records, each) for each in names}
    made = {}
    settings: dict[str, Report] = {}
    for each in names if name is None else [name]:
        others = [run for other in names if other != each for run in read[other]]
        log(f"{each}: {len(read[each])} records")
        if each == PILOT:
            made[each] = noise_files(read[each])
            continue
        tables = _tables(read[each])
        made[each] = _campaign_files(read[each], others, tables)
        settings |= {str(Path(each, level)): report for level, report in tables.items()}

    if name is None:
        ladders = [run for each in LADDERS for run in read.get(each, [])]
        made["scaling"] = scaling_files(ladders)
        made["settings"] = settings_files(settings)
        made["."] = {PAGE: page(read), COST: cost_file(read)}

    lines = []
    for each, files in made.items():
        _write_all(out / each, files)
        lines += [str(out / each / file) for file in files]
    return lines + _left_over(out, made)


def _tables(runs: Sequence[Run]) -> dict[str, Report]:
    """Return a campaign's tables by folder: one for each value of its factors, row and seeds apart.

    If a table has several kinds of attention, each kind's variants get a further table.
    """
    check_blocks(runs)
    levels: dict[str, list[Run]] = {}
    for run in runs:
        keys = [key for key in run.factors if key not in SEEDS]
        levels.setdefault(level_name(run, keys), []).append(run)

    tables: dict[str, Report] = {}
    for level, found in levels.items():
        tables[level] = build(found, telling(found))
        for kind, of_kind in kinds_of(found).items():
            tables["-".join(filter(None, [level, f"attn={kind}"]))] = build(of_kind, ["pe"])
    return tables


def _campaign_files(
    runs: Sequence[Run], others: Sequence[Run], tables: Mapping[str, Report]
) -> dict[str, bytes]:
    """Return a campaign's files: its figures, its tables, and changes of gains from the nine.

    If a table lacks the reference, a further table adds the runs of another campaign that has it.

    Args:
        runs: the runs of the campaign.
        others: the runs of the other campaigns.
        tables: the reports of the campaign, by folder.
    """
    files = of_campaign(runs, others)
    for place, report in sorted(tables.items()):
        made = _table_files(report) | changes_files(report, _base(report, others))
        # A table without the reference is joined with comparable variants of another campaign.
        if (joined := beside(report.runs, others)) is not None:
            made |= {f"beside/{name}": content for name, content in _table_files(joined).items()}
        files |= {str(Path(place, name)): content for name, content in made.items()}
    return files


def _base(report: Report, others: Sequence[Run]) -> list[Run]:
    """Return the runs to compare a level's gains with: preferably of equal tokens and warmup."""
    wanted = _budget(report.runs[0])
    for name in BASES:
        if found := [run for run in others if run.group == name and _budget(run) == wanted]:
            return found
    return [run for run in others if run.group == PRIMARY]


def _budget(run: Run) -> tuple[int, float]:
    return run.config.train.num_tokens, run.config.schedule.warmup_fraction


def _table_files(report: Report) -> dict[str, bytes]:
    figures = of_report(report)
    files = {
        "table.md": markdown(report, [name for name in figures if name.endswith("png")]).encode(),
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


def _left_over(out: Path, made: Mapping[str, Mapping[str, bytes]]) -> list[str]:
    """Name the files of an earlier report that these records no longer give, such as a level's.

    They are recognized by file names that this report also uses; other files are ignored.
    """
    ours = {Path(file).name for files in made.values() for file in files}
    return [
        f"{path} is of an earlier report: these records give no such file"
        for campaign, files in made.items()
        if campaign != "."
        for path in sorted((out / campaign).rglob("*"))
        if path.name in ours and str(path.relative_to(out / campaign)) not in files
    ]


def _write_all(out: Path, files: Mapping[str, bytes]) -> None:
    for name, content in files.items():
        path = out / name
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, content)
