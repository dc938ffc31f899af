"""The tables of campaigns, from their records."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path

from rope_exp import rates
from rope_exp.campaign.records import read_records, recorded_campaigns
from rope_exp.comparable import ORDER, SEEDS, check_blocks, row_factors, spelled
from rope_exp.config import DEFAULT_TABLES, check_group
from rope_exp.errors import RunFolderError, log
from rope_exp.files import path_name, read_bytes, refuse_unreadable
from rope_exp.folder import Run
from rope_exp.page import page
from rope_exp.report import Report, build, files_of, write_all, write_files

# A file beside the records: the paragraphs that the page of all campaigns opens on.
ANSWER = "answer.md"

# A function of the names of some campaigns, the runs of every campaign, and the tables of the named
# ones by folder. It returns files by their paths NAME/...
MakeFiles = Callable[
    [Collection[str], Mapping[str, Sequence[Run]], Mapping[str, Report]], dict[str, bytes]
]


def tables_of(runs: Sequence[Run]) -> dict[str, Report]:
    """Return a campaign's tables by folder: one for each value of its factors, row and seeds apart.

    If a table has named rows, each kind of attention with several variants, all of one size and
    each once, gets a further table. A campaign without blocks has no table.
    """
    if any(ORDER in run.factors for run in runs):
        return {}
    levels: dict[str, list[Run]] = {}
    for run in runs:
        keys = [key for key in run.factors if key not in SEEDS]
        # Two levels with one name are refused below, since their runs differ in another factor.
        level = path_name("-".join(f"{key}={spelled(run.config, key)}" for key in keys))
        levels.setdefault(level, []).append(run)

    tables: dict[str, Report] = {}
    for level, members in levels.items():
        check_blocks(members)
        factors = row_factors(members)
        tables[level] = build(members, factors)
        kinds: dict[str, list[Run]] = {}
        for run in members if factors != ["pe"] else []:
            kinds.setdefault(run.config.attn.label, []).append(run)
        for kind, same in sorted(kinds.items()):
            variants = {(run.config.pe.label, run.config.seed) for run in same}
            is_one_size = all(run.config.model == same[0].config.model for run in same)
            if len({pe for pe, _ in variants}) > 1 and is_one_size and len(variants) == len(same):
                tables["-".join(filter(None, [level, f"attn={kind}"]))] = build(same, ["pe"])
    return tables


def campaign_files(
    records: Path,
    campaigns: Sequence[str] = (),
    makers: Iterable[MakeFiles] = (),
    *,
    figures: bool = True,
) -> dict[str, bytes]:
    """Make the files of campaigns from their records, by their paths NAME/...

    Args:
        records: the folder of the campaigns' records.
        campaigns: their names; without any, every campaign with records, and the page of all.
        makers: functions that make files of your own.
        figures: whether to draw figures.
    Returns:
        The contents of the files.
    Raises:
        RunFolderError: there are no records, none of a campaign, or one that is damaged.
        ReportError: the runs of a campaign may not share a table.
    """
    recorded = recorded_campaigns(records)
    if not recorded:
        reason = "holds no campaign records; `rope-exp campaign NAME` creates them"
        raise RunFolderError(f"{records} {reason}")
    for name in campaigns:
        if name not in recorded:
            reason = f"holds no records of campaign {name}. Available: {', '.join(recorded)}"
            raise RunFolderError(f"{records} {reason}")

    # A table may include another campaign's rows.
    runs = {name: read_records(records, name) for name in recorded}
    names = campaigns or recorded
    tables: dict[str, Report] = {}
    made: dict[str, bytes] = {}
    for name in names:
        log(f"{name}: {len(runs[name])} records")
        for level, report in sorted(tables_of(runs[name]).items()):
            place = str(Path(name, level))
            tables[place] = report
            of_table = files_of(report, figures=figures)
            made |= {f"{place}/{file}": content for file, content in of_table.items()}

    made |= rates.files(names, runs)
    for make_files in makers:
        made |= make_files(names, runs, tables)
    if not campaigns:
        every_run = [run for name in recorded for run in runs[name]]
        made["report.html"] = page(tables, every_run, _answer(records))
    return made


def _answer(records: Path) -> str:
    """Return the text of `ANSWER` in the folder of the records; empty without this file."""
    path = records / ANSWER
    if not path.exists():
        return ""
    with refuse_unreadable(path):
        return read_bytes(path).decode()


def write_campaigns(records: Path, name: str | None, out: Path | None = None) -> list[str]:
    """Write the files of a campaign, or of all.

    Args:
        records: the folder of the campaigns' records.
        name: the campaign; None: all.
        out: where to write; None: results/.
    Returns:
        The paths of the files.
    Raises:
        RunFolderError: records are unreadable or may not share a table. Nothing is written.
        ConfigError: a campaign's tables need an `out`. Nothing is written.
    """
    if out is None:
        out = DEFAULT_TABLES
        for campaign in [name] if name is not None else recorded_campaigns(records):
            check_group("--campaign", campaign)

    # All files are made before any is written.
    made = campaign_files(records, [] if name is None else [name])
    for folder, files in by_folder(made).items():
        if folder:
            write_all(out / folder, files)
        else:
            # The page lies beside other files, perhaps those of a group's own table.
            write_files(out, files)
    return [str(out / file) for file in made]


def by_folder(files: Mapping[str, bytes]) -> dict[str, dict[str, bytes]]:
    """Return files by the first folder of their path, which is empty for none, and by the rest."""
    folders: dict[str, dict[str, bytes]] = {}
    for path, content in files.items():
        folder, _, file = path.rpartition("/") if "/" not in path else path.partition("/")
        folders.setdefault(folder, {})[file] = content
    return folders
