"""An optional mirror of the record to wandb. It never stops, slows or changes a run.

The mirror is a process of its own (rope_exp.run.mirror): it follows metrics.jsonl as the run
writes it. The run only starts it, tells it how the run ended, and leaves it a few seconds then.
Whatever fails there (network, key, disk, wandb's processes) ends in one warning; the same rows can
be mirrored again from the run's files.
"""

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rope_exp.config.run import RunConfig
from rope_exp.system.console import log
from rope_exp.system.errors import first_line
from rope_exp.system.processes import child_environment
from rope_exp.system.signals import held_back

# The mirror's own alarm ends it so long after the end of its run, and the run ends one that not
# even its alarm has ended.
FINISH_SECONDS = 5
KILL_SECONDS = 6


class TrackerError(Exception):
    """wandb raised nothing, and yet did not send or write everything."""


@contextmanager
def mirrored(config: RunConfig, folder: Path) -> Iterator[None]:
    """Have the config's tracker follow the run while the block writes its record.

    The record includes result.json. This costs the start of a process, and at most `KILL_SECONDS`
    at the end.
    """
    mirror = None
    if config.tracker.name == "wandb":
        # Schedulers send their signals to every process of a job, and a mirror has to finish.
        with held_back():
            command = [sys.executable, "-m", "rope_exp.run.mirror", str(folder)]
            try:
                mirror = subprocess.Popen(command, env=child_environment(), stdin=subprocess.PIPE)
            except OSError as error:
                warn(folder, error)

    status = "failed"
    try:
        yield
        # Unless there is a result.json, which knows better.
        status = "stopped"
    finally:
        if mirror is not None:
            _finish(mirror, folder, status)


def _finish(mirror: "subprocess.Popen[bytes]", folder: Path, status: str) -> None:
    """Tell the mirror how the run ended, and wait for its end."""
    try:
        mirror.communicate(status.encode(), KILL_SECONDS)
    except subprocess.TimeoutExpired:
        mirror.kill()
        mirror.wait()

    code = mirror.returncode
    reason = f"its process ended with exit code {code}"
    if code < 0:
        reason = f"its process ended with {signal.Signals(-code).name}"
    if code == -signal.SIGALRM:
        reason = f"wandb was not done {FINISH_SECONDS} s after the run"
    if code:
        warn(folder, TrackerError(reason))


def warn(folder: Path, error: BaseException) -> None:
    """Say in one line that the mirror of the run in `folder` failed, and what to do."""
    reason = first_line(error)
    if not isinstance(error, TrackerError):
        reason = f"{type(error).__name__}: {reason}"
    again = f"`python -m rope_exp mirror {folder}` mirrors metrics.jsonl again"
    log(f"warning: the wandb tracker failed ({reason}); {again}")
