"""What the command `report` does: run folders or records in, tables and figures out.

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
        runs: where groups of runs lie.
        group: which of them; None: the only one. Where rows are not variants, a comparison is of
            runs of several groups: all whose names match, * standing for anything; None: all.
        out: gets table.md, table.csv, table.tex and figures/.
        reference: the row that differences are against; None: as `build` has it.
        factors: what tells rows apart: pe, or keys such as optim.lr.
    Returns:
        The lines to print.
    Raises:
        RecordError: a file cannot be read, or runs may not share a table; nothing is written.
        ReportError: no factor but the seed is given.
        OSError: the disk would not have it.
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
        records: where the records of all campaigns lie.
        name: of the campaign; None: each that has records, the page of them all, and what they
            cost.
    Returns:
        The lines to print; the last name files of an earlier report, which nothing removes.
    Raises:
        RecordError: a record does not verify, or there is none; nothing is written.
        OSError: the disk would not have it.
    """
    names = recorded_campaigns(records)
    if not names:
        raise ReportError(
            f"{records} holds no record of any campaign; `rope-exp campaign NAME` makes them"
        )
    if name is not None and name not in names:
        there = ", ".join(names)
        raise ReportError(f"{records} holds no record of a campaign {name}; it holds {there}")

    # All are made before the first is written; one campaign's ladder may stand on another's runs.
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
    """Return a campaign's tables by folder: one for each choice of its factors but row and seeds.

    Where one holds several kinds of attention there is a table of each kind's variants, too.
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
    """Return a campaign's files: its tables, and how what variants gain differs from the nine's.

    Where a table lacks the reference there is one with what another campaign has beside it, too.

    Args:
        runs: of the campaign.
        others: of the other campaigns.
        tables: of the campaign, by their folders.
    """
    files = of_campaign(runs, others)
    for place, report in sorted(tables.items()):
        made = _table_files(report) | changes_files(report, _base(report, others))
        # Without the reference, its variants stand beside those that another campaign ran alike.
        if (joined := beside(report.runs, others)) is not None:
            made |= {f"beside/{name}": content for name, content in _table_files(joined).items()}
        files |= {str(Path(place, name)): content for name, content in made.items()}
    return files


def _base(report: Report, others: Sequence[Run]) -> list[Run]:
    """Return the nine that a level's gains stand beside: of its tokens and warmup, if any are."""
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

    They are told by their names, which files of this report have; others are not the report's.
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
