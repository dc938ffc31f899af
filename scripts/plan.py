"""Print what a config costs before it runs: `python scripts/plan.py --help`. It is `rope-exp plan`."""

import sys

from rope_exp import cli


def main() -> int:
    """Run the command on this process's command line."""
    return cli.main("plan")


if __name__ == "__main__":
    sys.exit(main())
