"""A run at a tracker, beside metrics.jsonl, which stays the source of truth."""

import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rope_exp.config import RunConfig
from rope_exp.errors import ConfigError, first_line, log
from rope_exp.files import write_atomically
from rope_exp.folder import METRICS, read_env, read_metrics, read_result
from rope_exp.identity import import_choice
from rope_exp.sections import TrackerConfig


class BaseTracker:
    """A run at a tracker. An exception there becomes one warning, and the run continues without it.

    A tracker defines `begin`, which may raise, and if need be `first_step` and `finish`.
    """

    def __init__(self, config: RunConfig, folder: Path) -> None:
        """Begin or resume the run, and send the rows of metrics.jsonl that it lacks."""
        self.name = config.tracker.name
        self.folder = folder
        # The tracker's run object; None after its first failure.
        self.run: Any = None
        with self._warning_on_error():
            env = read_env(folder)
            shown = {
                # A tracker gets no code: its hash identifies it.
                **config.replace("pe", source=None).to_dict(),
                "rotate": "".join(config.pe.rotate) or "none",
                "params": env.get("params"),
                "tokens_planned": config.train.num_tokens,
                "group_sha256": config.group_sha256,
                "env": env,
            }
            self.run = self.begin(config, without_nulls(shown))
            for row in read_metrics(folder):
                self.row(row)

    @classmethod
    def check(cls, tracker: TrackerConfig) -> None:
        """Refuse a tracker that is not installed."""
        spec = find_spec(tracker.name)
        # A folder without code, such as one that a tracker wrote here, also counts for Python.
        if spec is None or spec.origin is None:
            reason = f"is not installed; `pip install {tracker.name}`"
            raise ConfigError("tracker", tracker.name, reason)

    def row(self, row: Mapping[str, Any]) -> None:
        """Send a row of metrics, unless the run holds it already."""
        if self.run is None:
            return
        values = without_nulls(row)
        step = values.pop("step")
        with self._warning_on_error():
            if step >= self.first_step():
                self.run.log(values, step=step)

    def end(self, status: str) -> None:
        """Report the end of the run: the status in result.json, or else `status`."""
        if self.run is not None:
            with self._warning_on_error():
                self.finish(without_nulls(read_result(self.folder) or {"status": status}))

    def begin(self, config: RunConfig, shown: dict[str, Any]) -> Any:
        """Return the tracker's run, new or resumed; `shown` is what it shows as the config."""
        raise NotImplementedError

    def first_step(self) -> int:
        """Return the first step that the run does not hold yet."""
        return 0

    def finish(self, result: Mapping[str, Any]) -> None:
        """End the tracker's run."""
        self.run.finish()

    def run_id(self) -> str:
        """Return the run's id at its tracker, drawn once and kept in its folder."""
        path = self.folder / f"{self.name}_id"
        # A power cut may have left an empty file.
        if not path.exists() or not path.read_text():
            write_atomically(path, secrets.token_hex(8))
        return path.read_text()

    @contextmanager
    def _warning_on_error(self) -> Iterator[None]:
        try:
            yield
        # Some versions of wandb call sys.exit.
        except (Exception, SystemExit) as error:
            self.run = None
            reason = f"({type(error).__name__}: {first_line(error)})"
            place = self.folder / METRICS
            log(f"warning: the {self.name} tracker failed {reason}; the curves are in {place}")


def without_nulls(values: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out null values, for which wandb would show an empty panel."""
    return {key: value for key, value in values.items() if value is not None}


def tracker_class(name: str) -> type[BaseTracker] | None:
    """Return the class of the file of trackers/ that tracker.name names; None without one."""
    if name == "none":
        return None
    tracker: type[BaseTracker] = import_choice(
        "trackers", name, "tracker.name", core="none"
    ).Tracker
    return tracker
