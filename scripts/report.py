"""Compile run folders into the table and its figures: `python scripts/report.py --help`.

The same as `rope-exp report`.
"""

import sys

from rope_exp import cli


def main() -> int:
    """Run the command on this process's command line."""
    return cli.main("report")


if __name__ == "__main__":
    sys.exit(main())
