"""Child processes: an environment in which they find this package, and their output."""

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from rope_exp.system.errors import first_line

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


def output_of(*command: str, env: Mapping[str, str] | None = None) -> str:
    """Return a program's output.

    Raises:
        ChildProcessError: there is no such program, or it fails; the message has its name and why.
    """
    try:
        done = subprocess.run(
            command, env=env, capture_output=True, encoding="utf-8", errors="replace", check=True
        )
    except (OSError, subprocess.CalledProcessError) as error:
        why = first_line(getattr(error, "stderr", None) or error)
        raise ChildProcessError(f"{command[0]}: {why}") from None
    return done.stdout.strip()
