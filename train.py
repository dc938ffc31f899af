"""Train one run, or every run of a sweep: `python train.py --help`. See rope_exp/__main__.py."""

import sys

from rope_exp.__main__ import main

if __name__ == "__main__":
    sys.exit(main("train"))
