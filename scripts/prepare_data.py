"""Prepare a corpus ahead of training: `python scripts/prepare_data.py --help`. It is `rope-exp prepare`."""

import sys

from rope_exp import cli


def main() -> int:
    """Run the command on this process's command line."""
    return cli.main("prepare")


if __name__ == "__main__":
    sys.exit(main())
