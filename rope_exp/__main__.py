"""Entry point of `python -m rope_exp`; see rope_exp/cli.py."""

import sys

from rope_exp.cli import main

if __name__ == "__main__":
    sys.exit(main())
