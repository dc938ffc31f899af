"""An optional mirror of the record to wandb. It never stops, slows or changes a run.

The mirror is a process of its own: it follows metrics.jsonl as the run writes it, and hands the rows on. The run only
starts it and, once result.json is written, leaves it a few seconds. Whatever fails there (network, key, disk, wandb's
processes) ends in one warning; the same rows can be mirrored again from the run's files (`rebuild`). Keys are wandb's
own business: it reads WANDB_API_KEY or its netrc. What is sent is config.yaml, metrics.jsonl and result.json, and
nothing that wandb would find out about the machine, the checkout or the command line.
"""

import os
import re
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rope_exp.config.run import RunConfig
from rope_exp.run.folder import read_config, read_result
from rope_exp.run.metrics import METRICS, MetricsTail, read_metrics
from rope_exp.system.console import say
from rope_exp.system.files import write_atomically
from rope_exp.system.processes import child_environment
from rope_exp.system.signals import STOP_SIGNALS

POLL_SECONDS = 0.5
FINISH_SECONDS = 5  # that a mirror takes at most once its run has ended; its own alarm sees to that
KILL_SECONDS = 6  # after which a run ends a mirror that not even its alarm has ended


class TrackerError(Exception):
    """wandb raised nothing, and yet did not send or write everything."""


# -- in the run's process -------------------------------------------------------------------------------------------


@contextmanager
def mirrored(config: RunConfig, folder: Path) -> Iterator[None]:
    """Have the tracker that the config names follow the run while the block writes its record, result.json included.

    Costs the start of a process, and at most `KILL_SECONDS` at the end.
    """
    mirror = _start(folder) if config.tracker.name == "wandb" else None
    try:
        yield
    finally:
        if mirror is not None:
            _finish(mirror, folder)


def _start(folder: Path) -> "subprocess.Popen[bytes] | None":
    # Blocked before it begins: schedulers send their signals to every process of a job, and a mirror has to finish.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        return subprocess.Popen(
            [sys.executable, "-m", "rope_exp.run.tracker", str(folder)],
            env=child_environment(),
            stdin=subprocess.PIPE,
        )
    except OSError as error:
        _warn(folder, _reason(error))
        return None
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _finish(mirror: "subprocess.Popen[bytes]", folder: Path) -> None:
    assert mirror.stdin is not None
    mirror.stdin.close()
    try:
        code = mirror.wait(KILL_SECONDS)
    except subprocess.TimeoutExpired:
        mirror.kill()
        code = mirror.wait()
    if code == -signal.SIGALRM:
        _warn(folder, f"wandb was not done {FINISH_SECONDS} s after the run")
    elif code:
        _warn(
            folder,
            f"its process ended with {signal.Signals(-code).name if code < 0 else f'exit code {code}'}",
        )


def _warn(folder: Path, reason: str) -> None:
    again = f"`python scripts/mirror.py {folder}` mirrors metrics.jsonl again"
    say(f"warning: the wandb tracker failed ({reason}); {again}")


def _reason(error: BaseException) -> str:
    message = str(error).strip().partition("\n")[0]
    return (
        message
        if isinstance(error, TrackerError)
        else f"{type(error).__name__}: {message or 'no message'}"
    )


# -- the mirror -----------------------------------------------------------------------------------------------------


def main() -> None:
    """`python -m rope_exp.run.tracker RUN_FOLDER`: mirror until standard input ends, and then end soon.

    Standard input ends when the run has ended, also by kill -9. Exit code 0: mirrored, or said why not.
    """
    folder, ended = Path(sys.argv[1]), threading.Event()

    def wait_for_the_end() -> None:
        os.read(0, 1)  # nothing is ever written there
        signal.alarm(FINISH_SECONDS)  # not handled: it ends the process wherever that hangs
        ended.set()

    threading.Thread(target=wait_for_the_end, daemon=True).start()
    try:
        mirror(read_config(folder), folder, run_id(folder), follow(folder / METRICS, ended))
    # The contract of this module: no failure of the tracker, of any kind, is more than a warning.
    except BaseException as error:
        _warn(folder, _reason(error))
        os._exit(
            0
        )  # past wandb's own handlers, which wait; its process ends when it misses this one


def rebuild(folder: Path) -> str:
    """Mirror a run that is not running from its files alone, as a new run of wandb's; later starts go on with that one.

    Returns:
        The new run's id.

    Raises:
        RecordError, ConfigError: its files cannot be read.
    """
    identity = secrets.token_hex(8)
    mirror(read_config(folder), folder, identity, read_metrics(folder))
    write_atomically(folder / "wandb_id", identity)
    return identity


def mirror(
    config: RunConfig, folder: Path, identity: str, rows: Iterable[Mapping[str, Any]]
) -> None:
    """Hand rows to wandb, and in the end result.json.

    Online, wandb says how far it has come with the run of this id, and gets what is missing. Offline each start
    writes a folder of its own below `folder`/wandb, from the first row on.
    """
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # its makers need no word of our faults
    with _captured():
        import wandb

        tracker = config.tracker
        run = wandb.init(
            project=tracker.project,
            entity=tracker.entity,
            mode=tracker.mode,
            group=config.group,
            job_type=config.pe.label,
            name=config.name,
            id=identity,
            resume="allow" if tracker.mode == "online" else None,
            dir=str(folder),
            config=config.to_dict(),
            settings=wandb.Settings(
                console="off",
                show_info=False,
                save_code=False,
                disable_code=True,
                disable_git=True,
                x_disable_meta=True,
                x_disable_machine_info=True,
                x_disable_stats=True,
                x_save_requirements=False,
            ),
        )
        run.define_metric("tokens", hidden=True)
        run.define_metric("*", step_metric="tokens")
        for row in rows:
            if row["step"] >= run.starting_step:
                run.log(dict(row), step=row["step"], commit=True)
        run.summary.update(read_result(folder) or {"status": "stopped"})
        run.finish()
        wandb.teardown()  # waits for its process, and so for the last byte of its files
        _check_written(Path(run.settings.sync_dir))


def _check_written(folder: Path) -> None:
    """wandb goes on where its files cannot be written, and says so in a log beside them alone.

    Raises:
        TrackerError, OSError: they are not whole; the log may not have been written, either.
    """
    with tempfile.TemporaryFile(dir=folder) as file:
        file.write(bytes(1 << 16))
        file.flush()
    if b"failed to save record" in (folder / "logs" / "debug-internal.log").read_bytes():
        raise TrackerError(f"wandb could not write to {folder}")


def follow(path: Path, ended: threading.Event) -> Iterator[dict[str, Any]]:
    """The rows of a growing metrics.jsonl, each as soon as its line is whole, until all are read after `ended`."""
    tail = MetricsTail(path)
    while True:
        last = ended.is_set()
        yield from tail.poll()
        if last:
            return
        ended.wait(POLL_SECONDS)


def run_id(folder: Path) -> str:
    """The run's id at wandb: drawn once and kept in its folder, so that a run that goes on mirrors to the same one.

    One that is damaged is drawn anew, and so the run is mirrored anew, whole.
    """
    path = folder / "wandb_id"
    identity = path.read_text(encoding="ascii", errors="replace") if path.exists() else ""
    if not re.fullmatch("[0-9a-f]{16}", identity):
        identity = secrets.token_hex(8)
        write_atomically(path, identity)
    return identity


@contextmanager
def _captured() -> Iterator[None]:
    """Let what wandb's processes print go to a file without a name.

    Raises:
        TrackerError: among it is a complaint. Of what could not be sent or written wandb says so, and goes on.
    """
    saved = {number: os.dup(number) for number in (1, 2)}
    with tempfile.TemporaryFile() as printed:
        try:
            for number in saved:
                os.dup2(printed.fileno(), number)
            yield
        finally:
            for number, copy in saved.items():
                os.dup2(copy, number)
                os.close(copy)
        printed.seek(0)
        for line in printed.read().decode(errors="replace").splitlines():
            if "ERROR" in line or "WARNING" in line:
                raise TrackerError(line.removeprefix("wandb: "))


if __name__ == "__main__":
    main()
