"""The process that follows a run's record and hands it on to wandb.

What is sent is config.yaml, env.json, metrics.jsonl and result.json, and nothing that wandb would
find out about the machine, the checkout or the command line by itself. Keys are wandb's own
business: it reads WANDB_API_KEY or its netrc. No torch.
"""

import os
import re
import secrets
import signal
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, wait
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rope_exp.config.sections import TrackerConfig
from rope_exp.run.folder import read_config, read_env, read_result
from rope_exp.run.metrics import METRICS, MetricsTail, read_metrics
from rope_exp.run.tracker import FINISH_SECONDS, TrackerError, warn
from rope_exp.system.errors import EXIT_CODES, EXIT_FAILED
from rope_exp.system.files import write_atomically

POLL_SECONDS = 0.5

# The file that keeps the run's id at wandb.
IDENTITY = "wandb_id"

# Of what wandb prints: an error, or a warning that something was not sent or written. Its other
# warnings (of a newer version, of a setting that it ignores) are not ours to pass on.
COMPLAINT = re.compile(
    "ERROR|WARNING.*(not be synced|data may be missing|data will be ignored|"
    "[Ff]ailed to|[Uu]nable to|[Ff]alling back)"
)


def main() -> None:
    """Mirror the run in the folder sys.argv[1] until it has ended, and then end soon.

    Standard input says how the run ended: a word, or nothing but its own end after a kill -9. The
    exit code is 0, mirrored or not: what went wrong is said in a warning.
    """
    folder = Path(sys.argv[1])
    ended: Future[str] = Future()

    def wait_for_the_end() -> None:
        word = os.read(0, 64)
        # The alarm has no handler: it ends the process wherever that hangs.
        signal.alarm(FINISH_SECONDS)
        ended.set_result(word.decode() or "killed")

    threading.Thread(target=wait_for_the_end, daemon=True).start()
    try:
        mirror(folder, follow(folder / METRICS, ended), ended)
    # The tracker's contract: no failure of any kind is more than a warning.
    except BaseException as error:
        warn(folder, error)
        # Past wandb's own handlers, which wait. Its process ends when it misses this one.
        os._exit(0)


def rebuild(folder: Path) -> str:
    """Mirror a run that is not running from its files alone, as a new run of wandb's.

    Later starts of the run go on with that one.

    Returns:
        The new run's id.
    Raises:
        RecordError: the run's files cannot be read.
    """
    rows = read_metrics(folder)
    ended: Future[str] = Future()
    ended.set_result("stopped")
    (folder / IDENTITY).unlink(missing_ok=True)
    return mirror(folder, rows, ended)


def mirror(folder: Path, rows: Iterable[Mapping[str, Any]], ended: "Future[str]") -> str:
    """Hand the rows of a run to wandb, and in the end how the run ended.

    Online, wandb says how far it has come with this run, and is sent what it lacks. Offline, each
    start writes a folder of its own below `folder`/wandb, from the first row on.

    Args:
        folder: the run's.
        rows: in step order, the first included.
        ended: how the run ended if there is no result.json: "stopped", "failed" or "killed". It
            is asked for after the last row.
    Returns:
        The run's id at wandb.
    Raises:
        TrackerError: wandb went on, and did not send or write everything.
        Exception: whatever else it may raise.
    """
    # Its makers need no word of our faults.
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
    with _captured():
        import wandb

        run = _begin(folder)
        run.define_metric("tokens", hidden=True)
        run.define_metric("*", step_metric="tokens")
        for row in rows:
            if row["step"] >= run.starting_step:
                values = _known(row)
                step = values.pop("step")
                run.log(values, step=step, commit=True)

        result = read_result(folder) or {"status": ended.result()}
        run.summary.update(_known(result))
        if result["status"] == "stopped":
            run.mark_preempting()
        run.finish(exit_code=EXIT_CODES.get(result["status"], EXIT_FAILED))
        # Waits for wandb's process, and so for the last byte of its files.
        wandb.teardown()
        _check_written(Path(run.settings.sync_dir))
    return str(run.id)


def _begin(folder: Path) -> Any:
    """Return wandb's run, with all that is known of ours before its first row."""
    import wandb

    config = read_config(folder)
    env = read_env(folder)
    sites = "".join(config.pe.rotate) or "none"
    facts = {
        **config.to_dict(),
        "rotate": sites,
        "params": env.get("params"),
        "tokens_planned": config.train.num_tokens,
        "group_sha256": config.group_sha256,
        "env": env,
    }
    return wandb.init(
        **_place(config.tracker, folder),
        mode=config.tracker.mode,
        group=config.group,
        job_type=config.pe.label,
        name=config.name,
        tags=[str(config.data.name), config.model.name, f"rotate={sites}"],
        dir=str(folder),
        config=_known(facts),
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


def _place(tracker: TrackerConfig, folder: Path) -> dict[str, Any]:
    """Where the run stands at wandb. In a sweep of wandb's own, that is the sweep's to say."""
    if os.environ.get("WANDB_SWEEP_ID"):
        return {}
    return {
        "project": tracker.project,
        "entity": tracker.entity,
        "id": run_id(folder),
        "resume": "allow" if tracker.mode == "online" else None,
    }


def _known(values: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out what is null, of which wandb would make an empty panel."""
    return {key: value for key, value in values.items() if value is not None}


def _check_written(folder: Path) -> None:
    """Look whether wandb could write its files: it goes on if not, and only logs it beside them.

    Raises:
        TrackerError, OSError: they are not whole; the log may not have been written, either.
    """
    with tempfile.TemporaryFile(dir=folder) as file:
        file.write(bytes(1 << 16))
        file.flush()
    if b"failed to save record" in (folder / "logs" / "debug-internal.log").read_bytes():
        raise TrackerError(f"wandb could not write to {folder}")


def follow(path: Path, ended: "Future[str]") -> Iterator[dict[str, Any]]:
    """Yield the rows of a growing metrics.jsonl until `ended` is known and all of them are read."""
    tail = MetricsTail(path)
    while True:
        is_last = ended.done()
        yield from tail.poll()
        if is_last:
            return
        wait([ended], POLL_SECONDS)


def run_id(folder: Path) -> str:
    """Return the run's id at wandb, drawn once and kept in its folder.

    So a run that goes on mirrors to the same one. An id that was damaged is drawn anew, and so
    the run is mirrored anew, whole.
    """
    path = folder / IDENTITY
    identity = path.read_text(encoding="ascii", errors="replace") if path.exists() else ""
    if not re.fullmatch("[0-9a-f]{16}", identity):
        identity = secrets.token_hex(8)
        write_atomically(path, identity)
    return identity


@contextmanager
def _captured() -> Iterator[None]:
    """Let what wandb's processes print go to a file without a name, and read it in the end.

    Raises:
        TrackerError: wandb complained that it could not send or write something, and went on.
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
            if COMPLAINT.search(line):
                raise TrackerError(line.removeprefix("wandb: "))


if __name__ == "__main__":
    main()
