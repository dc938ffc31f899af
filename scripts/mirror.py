"""Mirror runs to wandb again from their files: `python scripts/mirror.py --help`. It is `rope-exp mirror`."""

import sys

from rope_exp import cli


def main() -> int:
    """Run the command on this process's command line."""
    return cli.main("mirror")


if __name__ == "__main__":
    sys.exit(main())
