"""Train one run, or every run of a sweep: `python train.py --help`. All of it is in rope_exp/cli.py."""

import sys

from rope_exp.cli import main

if __name__ == "__main__":
    sys.exit(main("train"))
