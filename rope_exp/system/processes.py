"""Child processes: an environment in which they find this package, and their output."""

import os
import subprocess
import sys
from importlib.machinery import PathFinder
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent
ROOT = PACKAGE.parent  # the checkout; site-packages if the package is installed

# The environment variable by which a dispatcher passes its process id to its ranks.
DISPATCHER_ID = "ROPE_EXP_DISPATCHER"


def child_environment(**changes: str) -> dict[str, str]:
    """Return this process's environment with `changes`, so that a child imports this very package.

    PYTHONPATH is set only if a fresh interpreter would not find the package: in a checkout that is
    not installed.
    """
    environment = os.environ | changes
    if not _is_importable():
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


def _is_importable() -> bool:
    """Return whether a fresh interpreter finds this very package, and no other copy of it.

    The first entry of sys.path is this process's own: its script's folder or the working directory.
    """
    for finder in sys.meta_path:
        path = sys.path[1:] if finder is PathFinder else None
        spec = finder.find_spec("rope_exp", path)
        if spec is not None:
            return spec.origin == str(PACKAGE / "__init__.py")
    return False
