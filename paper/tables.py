"""The tables of this paper, from its records: `python paper/tables.py [NAME ...]`.

Tables in `frozen.sha256` are of older code and stay as they are; all others are made again.
"""

import argparse
import hashlib
import sys
from pathlib import Path

import joined
import settings

from rope_exp.campaign.tables import by_folder, campaign_files
from rope_exp.errors import EXIT_DONE, run_command
from rope_exp.report import write_all

PAPER = Path(__file__).parent
RECORDS = PAPER / "records"
RESULTS = PAPER / "results"
# The campaigns of protocols 2 and 3, whose tests pair; README.md shows the first one.
TESTED = ("nine_26m", "lead_26m", "open_26m", "qk_rate_26m", "rates_26m", "shift_26m")
MAKERS = (joined.files, settings.files)


def frozen() -> dict[str, str]:
    """Return the SHA-256 of each file that is not made again, by its path in the repository."""
    digests = {}
    for line in (PAPER / "frozen.sha256").read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            sha256, path = line.split("  ")
            digests[path] = sha256
    return digests


def changed() -> list[str]:
    """Return the frozen files that are gone, or not what they were."""
    changed = []
    for name, sha256 in frozen().items():
        path = PAPER.parent / name
        if not path.is_file() or hashlib.sha256(path.read_bytes()).hexdigest() != sha256:
            changed.append(name)
    return changed


def main() -> int:
    """Write the tables of some campaigns, or all that are not frozen; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", metavar="NAME", nargs="*")
    parser.add_argument(
        "--out", type=Path, help="write here instead, with figures, also what is frozen"
    )
    args = parser.parse_args()
    for name in args.names:
        if args.out is None and name not in TESTED:
            parser.error(f"{name} is frozen; give --out")

    out = args.out or RESULTS
    # The table of settings has runs of all campaigns, and links to their tables.
    makers = [joined.files] if args.names else MAKERS
    files = campaign_files(RECORDS, args.names or TESTED, makers, figures=args.out is not None)
    for name, of_folder in by_folder(files).items():
        write_all(out / name, of_folder)
    return EXIT_DONE


if __name__ == "__main__":
    sys.exit(run_command(main))
