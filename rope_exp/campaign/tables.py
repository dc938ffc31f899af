"""The tables of campaigns, from their records."""

from collections.abc import Sequence
from pathlib import Path

from rope_exp.campaign.records import read_records, recorded_campaigns
from rope_exp.comparable import ORDER, SEEDS, check_blocks, row_factors, spelled
from rope_exp.errors import RecordError, log
from rope_exp.folder import Run
from rope_exp.report import Report, build, files_of, leaf_functions, pages_of, write_all


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
        level = "-".join(f"{key}={spelled(run.config, key)}" for key in keys)
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


def write_campaigns(records: Path, name: str | None, out: Path) -> list[str]:
    """Rebuild a campaign's files from its records, in <out>/<name>, and return their paths.

    Args:
        name: the campaign's name; None: every campaign with records, and the page of all.
    """
    names = recorded_campaigns(records)
    if not names:
        reason = "holds no campaign records; `rope-exp campaign NAME` creates them"
        raise RecordError(f"{records} {reason}")
    if name is not None and name not in names:
        available = ", ".join(names)
        raise RecordError(f"{records} holds no records of campaign {name}. Available: {available}")

    # Make all files before writing any. A table may include another campaign's rows.
    runs = {campaign: read_records(records, campaign) for campaign in names}
    asked = names if name is None else [name]
    tables: dict[str, Report] = {}
    made: dict[str, bytes] = {}
    for campaign in asked:
        log(f"{campaign}: {len(runs[campaign])} records")
        for level, report in sorted(tables_of(runs[campaign]).items()):
            place = str(Path(campaign, level))
            tables[place] = report
            made |= {f"{place}/{file}": content for file, content in files_of(report).items()}

    for files in leaf_functions("files", "studies").values():
        made |= files(asked, runs, tables)
    if name is None:
        made |= pages_of(tables, [run for campaign in names for run in runs[campaign]])
    write_all(out, made)
    return [str(out / file) for file in made]
