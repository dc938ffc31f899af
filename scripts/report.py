"""Compile run folders into the table and its figures: `python scripts/report.py --help`.

The same as `rope-exp report`.
"""

import sys
from pathlib import Path

# Python looks beside this file, and finds the package without this only if it is installed. The
# command then says what else is missing.
sys.path.append(str(Path(__file__).resolve().parents[1]))

from rope_exp.__main__ import main

if __name__ == "__main__":
    sys.exit(main("report"))
