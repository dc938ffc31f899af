"""An optional mirror of the record to wandb. It never stops, slows or changes a run.

The tracker lives in a daemon thread behind a queue: the loop hands rows over and goes on. Whatever fails there
(network, key, disk, its own process) ends in one warning; metrics.jsonl has every row. Keys are wandb's own business:
it reads WANDB_API_KEY or its netrc; the config that is uploaded holds none.
"""

import queue
import secrets
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from rope_exp.config import RunConfig

FINISH_SECONDS = 10.0  # the most that a run waits for its tracker, in all


class Tracker(Protocol):
    """What the loop sees."""

    def log(self, row: Mapping[str, Any]) -> None:
        """Mirror a row of metrics."""

    def finish(self, result: Mapping[str, Any] | None) -> None:
        """Mirror the result (None: stopped, to be resumed) and let go."""


class NoTracker:
    """tracker=none."""

    def log(self, row: Mapping[str, Any]) -> None:
        """Nothing to mirror to."""

    def finish(self, result: Mapping[str, Any] | None) -> None:
        """Nothing to let go."""


class WandbTracker:
    """tracker=wandb, online or offline."""

    def __init__(self, config: RunConfig, folder: Path) -> None:
        self._config, self._folder = config, folder
        self._queue: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        self._failed = threading.Event()
        self._thread = threading.Thread(target=self._work, name="tracker", daemon=True)
        self._thread.start()

    def log(self, row: Mapping[str, Any]) -> None:
        """Hand a row over; returns at once."""
        if not self._failed.is_set():
            self._queue.put(("row", dict(row)))

    def finish(self, result: Mapping[str, Any] | None) -> None:
        """Hand the result over and wait a little for what is queued."""
        self._queue.put(("finish", result))
        self._thread.join(FINISH_SECONDS)
        if self._thread.is_alive() and not self._failed.is_set():
            self._warn(f"did not finish within {FINISH_SECONDS:.0f} s")

    def _work(self) -> None:
        try:
            import wandb

            config, tracker = self._config, self._config.tracker
            run = wandb.init(
                project=tracker.project,
                entity=tracker.entity,
                mode=tracker.mode,
                group=config.group,
                job_type=config.pe.label,
                name=config.name,
                id=run_id(self._folder),
                resume="allow" if tracker.mode == "online" else None,
                dir=str(self._folder),
                config=config.to_dict(),
                settings=wandb.Settings(console="off", silent=True, x_disable_stats=True, save_code=False),
            )
            run.define_metric("tokens", hidden=True)
            run.define_metric("*", step_metric="tokens")
            while True:
                kind, value = self._queue.get()
                if kind == "row":
                    run.log(value, step=value["step"])
                    continue
                run.summary.update(value or {"status": "stopped"})
                run.finish()
                return
        # The contract of this module: no failure of the tracker, of any kind, reaches the run.
        except BaseException as error:
            self._failed.set()
            self._warn(f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no message'}")

    def _warn(self, reason: str) -> None:
        print(f"warning: the wandb tracker stopped ({reason}); the run goes on without it", file=sys.stderr, flush=True)


def run_id(folder: Path) -> str:
    """The run's id at wandb: drawn once and kept in its folder, so that a run that goes on mirrors to the same one."""
    path = folder / "wandb_id"
    if not path.exists():
        path.write_text(secrets.token_hex(8), encoding="ascii")
    return path.read_text(encoding="ascii")


def open_tracker(config: RunConfig, folder: Path) -> Tracker:
    """The tracker that the config names."""
    return WandbTracker(config, folder) if config.tracker.name == "wandb" else NoTracker()
