"""What the command `report` does: run folders in, the table and its figures out.

The same runs give the same bytes.
"""

from pathlib import Path

from rope_exp.evidence.runs import find_groups, read_runs
from rope_exp.report.content import build
from rope_exp.report.figures import against_published, loss_curves
from rope_exp.report.sentences import summary
from rope_exp.report.tables import csv_table, markdown, plain_table, tex_table
from rope_exp.system.errors import RecordError
from rope_exp.system.files import write_atomically


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
        OSError: the disk would not have it.
    """
    try:
        found, left_out = read_runs(find_groups(runs, group, several=factors != ("pe",)))
    except OSError as error:
        raise RecordError(str(error)) from error

    keys = [factor for factor in factors if factor != "seed"]
    report = build(found, keys, reference, left_out)
    files = {
        "table.md": markdown(report).encode(),
        "table.csv": csv_table(report).encode(),
        "table.tex": tex_table(report).encode(),
        "figures/loss_curves.png": loss_curves(report),
    }
    if report.of_variants:
        files["figures/against_published.png"] = against_published(report)

    for name, content in files.items():
        path = out / name
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, content)
    return [plain_table(report), summary(report), "", *(str(out / name) for name in files)]
