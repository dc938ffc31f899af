"""Compile run folders into the table and its figures: `python scripts/report.py [--group NAME]`.

Reads <runs>/<group>/<pe>/seed<k>, and writes table.md, table.csv, table.tex and figures/ below --out. The same runs
give the same bytes. Exit codes: 0 done, 1 the disk would not have it, 2 runs that may not share a table, or usage; then
nothing is written.
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from rope_exp.config.run import DEFAULT_OUTPUT
from rope_exp.evidence.runs import REFERENCE, ReportError, build, find_group, read_group
from rope_exp.report.figures import against_published, loss_curves
from rope_exp.report.tables import csv_table, markdown, plain_table, summary, tex_table
from rope_exp.system.errors import RecordError
from rope_exp.system.files import write_atomically


def main() -> int:
    """Parse, read, check, and only then write."""
    parser = argparse.ArgumentParser(
        description="Compile run folders into the table and its figures."
    )
    parser.add_argument(
        "--runs", type=Path, default=DEFAULT_OUTPUT, help="where groups of runs lie (%(default)s)"
    )
    parser.add_argument("--group", help="which of them; may be left out where there is one")
    parser.add_argument(
        "--out", type=Path, default=DEFAULT_OUTPUT.parent, help="where to write (%(default)s)"
    )
    parser.add_argument(
        "--reference", help=f"the variant that differences are against ({REFERENCE})"
    )
    arguments = parser.parse_args()
    try:
        report = build(read_group(find_group(arguments.runs, arguments.group)), arguments.reference)
    except (ReportError, RecordError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    files = {
        "table.md": markdown(report).encode(),
        "table.csv": csv_table(report).encode(),
        "table.tex": tex_table(report).encode(),
        "figures/loss_curves.png": loss_curves(report),
        "figures/against_published.png": against_published(report),
    }
    try:
        for name, content in files.items():
            path = arguments.out / name
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, content)
    except OSError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(
        plain_table(report),
        summary(report),
        "",
        *(arguments.out / name for name in files),
        sep="\n",
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
