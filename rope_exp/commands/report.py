"""`rope-exp report`: the table of the runs that are done."""

import fnmatch
from collections.abc import Sequence
from pathlib import Path

from rope_exp import rates
from rope_exp.commands._parser import DEFAULT_RECORDS, Parser
from rope_exp.comparable import REFERENCE, check_blocks
from rope_exp.config import DEFAULT_OUTPUT, DEFAULT_TABLES, check_group
from rope_exp.errors import ConfigError, RunFolderError, visible
from rope_exp.folder import ReportError, is_run, read_runs
from rope_exp.page import page
from rope_exp.report import build, files_of, write_all

LONGEST_NAME = 255  # bytes of a file's name on Linux


def main(argv: list[str]) -> int:
    """Compile run folders into the table and its figures, if all runs may share one table."""
    parser = Parser("report", "Compile run folders into the table and its figures.")
    parser.add_argument("--runs", type=Path, help=f"where groups of runs lie ({DEFAULT_OUTPUT})")
    parser.add_argument("--group", help="which of them; may be left out where there is one")
    parser.add_argument("--out", type=Path, help=f"where to write ({DEFAULT_TABLES}/GROUP)")
    parser.add_argument("--reference", help=f"the row that differences are against ({REFERENCE})")
    rows = "what tells rows apart: pe (the default), optim.lr, model, ...; --group may hold *"
    parser.add_argument("--factors", nargs="+", metavar="KEY", help=rows)
    allowed = "take runs of one seed with different torch versions, threads or processes; mark rows"
    parser.add_argument("--allow-mixed", action="store_true", default=None, help=allowed)
    parser.add_argument("--campaign", metavar="NAME", help="records of one campaign, or of `all`")
    parser.add_argument("--records", type=Path, default=DEFAULT_RECORDS, help="(%(default)s)")
    args = parser.parse_args(argv)
    out = args.out or DEFAULT_TABLES
    if any(place.is_file() for place in (out, *out.parents)):
        raise ConfigError("--out", str(out), "must be a folder, not a file or below one")
    if args.campaign is not None:
        for flag in ("runs", "group", "reference", "factors", "allow_mixed"):
            if getattr(args, flag) is not None:
                reason = "is for the tables of runs, and --campaign takes records; leave one out"
                raise ConfigError(f"--{flag.replace('_', '-')}", ..., reason)

        # Imported late, because figures take a second to import.
        from rope_exp.campaign.tables import write_campaigns

        name = None if args.campaign == "all" else args.campaign
        lines = write_campaigns(args.records, name, args.out)
    else:
        factors = tuple(args.factors or ["pe"])
        runs = args.runs or DEFAULT_OUTPUT
        mixed = bool(args.allow_mixed)
        lines = write(runs, args.group, args.out, args.reference, factors, allow_mixed=mixed)
    print(visible("\n".join(lines)))
    return 0


def write(
    runs: Path,
    group: str | None,
    out: Path | None = None,
    reference: str | None = None,
    factors: tuple[str, ...] = ("pe",),
    *,
    allow_mixed: bool = False,
) -> list[str]:
    """Write the files of a table of runs, and return the lines to print.

    Args:
        runs: the folder of the groups.
        group: the group with the rows; None: the only one. If rows are not variants, a pattern for
            several groups; None: all.
        out: where to write; None: results/GROUP.
        reference: the row that differences are against; None: the default one.
        factors: the keys that distinguish rows.
        allow_mixed: mark rows of blocks that were computed in two ways, instead of refusing them.
    Returns:
        The table as a terminal shows it, and the paths of the files.
    Raises:
        ReportError, RunFolderError: runs are unreadable, or may not share a table. Nothing is
            written.
        ConfigError: the table needs an `out`. Nothing is written.
    """
    try:
        read, left_out = read_runs(find_groups(runs, group, several=factors != ("pe",)))
    except OSError as error:
        raise RunFolderError(str(error)) from error

    keys = [factor for factor in factors if factor != "seed"]
    if not keys:
        raise ReportError("--factors seed: rows need another factor besides the seed, such as pe")
    if not allow_mixed:
        check_blocks(read, "rerun one of them, or let --allow-mixed mark the rows")
    report = build(read, keys, reference, left_out)
    if out is None:
        out = DEFAULT_TABLES / folder_name(report.groups.split(", "))
    files = files_of(report) | {"report.html": page({".": report}, report.runs)}
    if factors != ("pe",):
        files |= rates.of_group(report.runs)
    write_all(out, files)
    return [*report.texts("terminal"), "", *(str(out / name) for name in files)]


def folder_name(groups: Sequence[str]) -> str:
    """Return the name of the folder for the table of some groups."""
    name = "+".join(groups)
    if len(name.encode()) > LONGEST_NAME:
        reason = f"must be given: the names of {len(groups)} groups are too long for one folder"
        raise ConfigError("--out", ..., reason)
    check_group("--group", name)
    return name


def find_groups(runs: Path, pattern: str | None, *, several: bool = False) -> list[Path]:
    """Return the groups below `runs` whose names match a pattern; one only, unless `several`."""
    groups = sorted({path.parts[-3] for path in runs.glob("[!.]*/[!.]*/[!.]*") if is_run(path)})
    if not groups:
        raise ReportError(
            f"{runs} holds no runs (<group>/<pe>/seed<k>); `rope-exp train +experiment=nine` "
            "trains the nine, and a run with a custom run.dir must be moved to such a folder"
        )

    names = fnmatch.filter(groups, pattern or "*")
    if not names or (len(names) > 1 and not several):
        holds = f"{len(names)} groups" if names else "no group"
        if pattern is not None:
            holds += f" named {pattern}"
        raise ReportError(
            f"{runs} holds {holds}, but a table takes one (or several, with --factors and the keys "
            "that differ, such as pe optim.lr). Available for --group: "
            f"{', '.join(names or groups)}"
        )
    return [runs / name for name in names]
