"""Compile run folders into the table and its figures: `python scripts/report.py --help`.

The same as `rope-exp report`.
"""

import sys

from rope_exp.__main__ import main

if __name__ == "__main__":
    sys.exit(main("report"))
