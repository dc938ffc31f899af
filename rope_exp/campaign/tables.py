"""The tables of campaigns, from their records."""

from collections.abc import Sequence
from pathlib import Path

from rope_exp.comparable import SEEDS, check_blocks, has_blocks, level_name, telling
from rope_exp.compile import files_of, pages_of, write_all
from rope_exp.errors import log
from rope_exp.records import read_records, recorded_campaigns
from rope_exp.report import Report, build, parts
from rope_exp.runs import ReportError, Run


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
        for level, report in sorted(tables_of(read[each]).items()):
            place = str(Path(each, level))
            tables[place] = report
            made |= {f"{place}/{file}": content for file, content in files_of(report).items()}

    for files in parts("files", "studies").values():
        made |= files(asked, read, tables)
    if name is None:
        made |= pages_of(tables, [run for runs in read.values() for run in runs])
    write_all(out, made)
    return [str(out / file) for file in made]
