"""The files of a report: all of them are made before any is written."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import pandas as pd

from rope_exp.errors import RecordError
from rope_exp.files import write_atomically
from rope_exp.folder import ReportError, Run, find_groups, read_runs
from rope_exp.report import Report, build, pairs_csv, parts, table_csv, table_md, table_tex


def write(
    runs: Path,
    group: str | None,
    out: Path,
    reference: str | None = None,
    factors: tuple[str, ...] = ("pe",),
    *,
    replace: bool = True,
) -> list[str]:
    """Read <runs>/<group>/<pe>/seed<k>, check, write below `out`, and return the lines to print.

    Args:
        group: None: the only one. If rows are not variants, a pattern for several; None: all.
        reference: the row that others are compared with; None: the default of `build`.
        factors: the factors that distinguish rows: pe, or keys such as optim.lr.
        replace: whether the table of another group may be replaced.
    Raises:
        RecordError: a file cannot be read, or runs may not share a table; nothing is written.
        ReportError: the only factor is the seed, or another group's table may not be replaced.
        OSError: writing failed.
    """
    try:
        read, left_out = read_runs(find_groups(runs, group, several=factors != ("pe",)))
    except OSError as error:
        raise RecordError(str(error)) from error

    keys = [factor for factor in factors if factor != "seed"]
    if not keys:
        raise ReportError("--factors seed: rows need another factor besides the seed, such as pe")
    report = build(read, keys, reference, left_out)
    ours = theirs = {row.runs[0].group for row in report.rows.values()}
    table = out / "table.csv"
    with suppress(OSError, ValueError, KeyError):  # There is no table yet.
        theirs = ours if replace else set(pd.read_csv(table, converters={"group": str})["group"])
    if theirs != ours:
        raise ReportError(
            f"{table} is the table of group {', '.join(sorted(theirs))}; pass "
            "--out FOLDER to keep it, or --force to replace it"
        )
    files = files_of(report) | pages_of({".": report}, report.runs)
    if factors != ("pe",):
        for of_group in parts("of_group", "studies").values():
            files |= of_group(report.runs)
    write_all(out, files)
    return [*report.told("terminal"), "", *(str(out / name) for name in files)]


def files_of(report: Report) -> dict[str, bytes]:
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


def pages_of(tables: Mapping[str, Report], runs: Sequence[Run]) -> dict[str, bytes]:
    """Return the pages of all tables, by folder, and of all runs on record."""
    pages = parts("page", "page")
    return {f"{name}.html": page(tables, runs) for name, page in pages.items()}


def write_all(out: Path, files: Mapping[str, bytes]) -> None:
    """Write files by their paths below `out`."""
    for name, content in files.items():
        path = out / name
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, content)
