"""Curves in wandb or trackio, beside metrics.jsonl, which stays the source of truth.

The main process calls the tracker as any script does. An exception there becomes one warning, and
the run continues without it. wandb's environment variables apply wherever the config keeps a
default. No torch.
"""

import importlib
import os
import secrets
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rope_exp.config import RunConfig, TrackerConfig
from rope_exp.errors import EXIT_CODES, EXIT_FAILED, ConfigError, first_line, log
from rope_exp.files import write_atomically
from rope_exp.folder import METRICS, read_env, read_metrics, read_result

# wandb's settings, unless the environment sets them: timeouts in seconds for a broken network, and
# no upload of the terminal, the command line or the checkout.
SETTINGS = {
    "WANDB_LOGIN_TIMEOUT": "10",
    "WANDB_INIT_TIMEOUT": "10",
    "WANDB_FINISH_TIMEOUT": "20",
    "WANDB_FINISH_TIMEOUT_RAISES": "true",
    "WANDB_QUIET": "true",
    "WANDB_CONSOLE": "off",
    "WANDB_DISABLE_CODE": "true",
    "WANDB_DISABLE_GIT": "true",
    "WANDB__DISABLE_META": "true",
    "WANDB__SAVE_REQUIREMENTS": "false",
    "WANDB_ERROR_REPORTING": "false",
}


class Tracker:
    """A run at wandb or trackio, as a context manager. Its methods never raise.

    Attributes:
        run: the tracker's run object; None without a tracker, and after its first failure.
    """

    def __init__(self, config: RunConfig, folder: Path) -> None:
        """Begin or resume the run, and send the rows of metrics.jsonl that it lacks."""
        self.run: Any = None
        self.name = config.tracker.name
        self.folder = folder
        if self.name != "none":
            with self._guarded():
                self.run = _begin(config, folder)
                _send(self.run, read_metrics(folder))

    def row(self, row: Mapping[str, Any]) -> None:
        """Send a row of metrics."""
        if self.run is not None:
            with self._guarded():
                _send(self.run, [row])

    def __enter__(self) -> "Tracker":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Report the end of the run: the status in result.json, else "stopped" or "failed"."""
        if self.run is not None:
            with self._guarded():
                _end(self.run, self.folder, "failed" if kind else "stopped")

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        try:
            yield
        # Some versions of wandb call sys.exit.
        except (Exception, SystemExit) as error:
            self.run = None
            log(
                f"warning: the {self.name} tracker failed ({type(error).__name__}: "
                f"{first_line(error)}); the curves are in {self.folder / METRICS}"
            )


def check_trackers(configs: Iterable[RunConfig]) -> None:
    """Refuse a tracker that is not installed; without a key, log it and switch wandb offline.

    Raises:
        ConfigError: a tracker is not installed; the message names its package.
    """
    for tracker in {config.tracker for config in configs}:
        name = tracker.name
        if name != "none" and find_spec(name) is None:
            raise ConfigError("tracker", name, f"is not installed; `pip install {name}`")
        if name == "wandb" and tracker.mode == "online" and (fault := _key_fault()):
            os.environ["WANDB_MODE"] = "offline"
            log(
                f"wandb: {fault}; tracking offline. Log in with `wandb login` or WANDB_API_KEY; "
                "`wandb sync` uploads offline runs"
            )


def _key_fault() -> str:
    """Return why wandb would prompt for a key, which a job cannot answer; "" if it would not."""
    if os.environ.get("WANDB_MODE", "online") != "online":
        return ""
    import wandb

    try:
        return "" if wandb.login(prompt=False, verify=False) else "no API key"
    except TypeError:
        # An older version cannot be asked. Its init raises if there is no key.
        return ""
    except wandb.Error as error:
        return first_line(error)


# -- the tracker's own calls ---------------------------------------------------------------------


def _begin(config: RunConfig, folder: Path) -> Any:
    """Return the tracker's run, new or resumed."""
    for variable, value in SETTINGS.items():
        os.environ.setdefault(variable, value)
    tracker = config.tracker
    module = importlib.import_module(tracker.name)
    env = read_env(folder)
    # A tracker gets no code: its hash identifies it.
    facts = {
        **config.replace("pe", source=None).to_dict(),
        "rotate": _sites(config),
        "params": env.get("params"),
        "tokens_planned": config.train.num_tokens,
        "group_sha256": config.group_sha256,
        "env": env,
    }
    if tracker.name == "wandb":
        run = module.init(config=_known(facts), **_wandb_arguments(config, folder))
        run.define_metric("tokens", hidden=True)
        run.define_metric("*", step_metric="tokens")
        return run

    # trackio resumes by name, so two runs must not share one.
    return module.init(
        project=tracker.project,
        name=f"{_name(config)}-{_run_id(config, folder)}",
        group=config.group,
        config=_known(facts),
        resume="allow",
    )


def _wandb_arguments(config: RunConfig, folder: Path) -> dict[str, Any]:
    """Return the arguments of wandb.init, except those that the environment sets."""
    tracker = config.tracker
    mode = os.environ.get("WANDB_MODE")
    if tracker.mode != TrackerConfig.mode:
        mode = tracker.mode
    own_tags = [config.data.name, config.model.name, f"rotate={_sites(config)}"]
    tags = tracker.tags or filter(None, os.environ.get("WANDB_TAGS", "").split(","))
    found: dict[str, Any] = {
        "mode": mode,
        "entity": tracker.entity,
        "notes": tracker.notes,
        "tags": list(dict.fromkeys([*own_tags, *tags])),
        # A later start writes an offline run again, from the first row.
        "resume": None if mode == "offline" else "allow",
    }

    ours = {
        "id": ("WANDB_RUN_ID", _run_id(config, folder)),
        "name": ("WANDB_NAME", _name(config)),
        "group": ("WANDB_RUN_GROUP", config.group),
        "job_type": ("WANDB_JOB_TYPE", config.pe.label),
        "dir": ("WANDB_DIR", str(folder)),
        "project": ("WANDB_PROJECT", tracker.project),
    }
    for key, (variable, value) in ours.items():
        if not os.environ.get(variable):
            found[key] = value
    if tracker.project != TrackerConfig.project:
        found["project"] = tracker.project
    return found


def _send(run: Any, rows: Iterable[Mapping[str, Any]]) -> None:
    """Send the rows that the run does not hold yet."""
    # trackio keeps the first step of a resumed run in a private attribute.
    first = getattr(run, "starting_step", getattr(run, "_next_step", 0))
    for row in rows:
        values = _known(row)
        step = values.pop("step")
        if step >= first:
            run.log(values, step=step)


def _end(run: Any, folder: Path, status: str) -> None:
    """Report the end of the run: the status in result.json, else `status`."""
    result = read_result(folder) or {"status": status}
    # trackio stores only rows.
    if not hasattr(run, "summary"):
        run.finish()
        return

    run.summary.update(_known(result))
    if result["status"] == "stopped":
        run.mark_preempting()
    run.finish(exit_code=EXIT_CODES.get(result["status"], EXIT_FAILED))


def _run_id(config: RunConfig, folder: Path) -> str:
    """Return the run's id at its tracker, drawn once and kept in its folder."""
    path = folder / f"{config.tracker.name}_id"
    # A power cut may have left an empty file.
    found = path.read_text(encoding="ascii") if path.exists() else ""
    if not found:
        found = secrets.token_hex(8)
        write_atomically(path, found)
    return found


def _name(config: RunConfig) -> str:
    # wandb's limit.
    return (config.tracker.run_name or config.name)[:128]


def _sites(config: RunConfig) -> str:
    return "".join(config.pe.rotate) or "none"


def _known(values: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out null values, for which wandb would show an empty panel."""
    return {key: value for key, value in values.items() if value is not None}
