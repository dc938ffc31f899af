"""The tables and figures of this paper, from its records: `python paper/tables.py [NAME ...]`.

Tables in `frozen.sha256` are of older code and stay as they are; all others are made again.
"""

import argparse
import hashlib
from pathlib import Path

import joined
import settings
from places import PAPER, RECORDS, TESTED, folder_of

from rope_exp.campaign.tables import by_folder, campaign_files
from rope_exp.report import write_all

FURTHER = (joined.files, settings.files)


def frozen() -> dict[str, str]:
    """Return the SHA-256 of each file that is not made again, by its path in the repository."""
    lines = (PAPER / "frozen.sha256").read_text(encoding="utf-8").splitlines()
    return {path: sha256 for sha256, path in (x.split("  ") for x in lines if x[:1] != "#")}


def changed() -> list[str]:
    """Return the frozen files that are gone, or not what they were."""
    root = PAPER.parent
    return [
        path
        for path, sha256 in frozen().items()
        if not (root / path).is_file()
        or hashlib.sha256((root / path).read_bytes()).hexdigest() != sha256
    ]


def main() -> None:
    """Write the files of some campaigns, or of all that are not frozen."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", metavar="NAME", nargs="*", default=TESTED)
    parser.add_argument(
        "--out", type=Path, help="write here instead, with figures, also what is frozen"
    )
    asked = parser.parse_args()
    for name in asked.names:
        if asked.out is None and name not in TESTED:
            parser.error(f"{name} is frozen; give --out")
    files = campaign_files(RECORDS, asked.names, FURTHER, figures=asked.out is not None)
    for name, own in by_folder(files).items():
        write_all(asked.out / name if asked.out else folder_of(name), own)


if __name__ == "__main__":
    main()
