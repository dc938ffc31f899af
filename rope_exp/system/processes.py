"""Child processes: an environment in which they find this package, and their output."""

import os
import subprocess
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent
ROOT = PACKAGE.parent  # the checkout; site-packages if the package is installed

# The environment variable by which a dispatcher passes its process id to its ranks.
DISPATCHER_ID = "ROPE_EXP_DISPATCHER"


def child_environment(**changes: str) -> dict[str, str]:
    """Return this process's environment with `changes`, for a child that imports this package.

    A checkout comes first on the child's path, as it may not be installed.
    """
    environment = os.environ | changes
    # An installed package holds its configs.
    if not (PACKAGE / "configs").is_dir():
        paths = [str(ROOT), os.environ.get("PYTHONPATH")]
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    return environment


def output_of(*command: str) -> str | None:
    """Return a program's output, or None if there is no such program or it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()
