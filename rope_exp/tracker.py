"""Curves in wandb or trackio, beside metrics.jsonl, which stays the source of truth.

The main process calls the tracker as any script does. An exception there becomes one warning, and
the run continues without it. No torch.
"""

import importlib
import os
import secrets
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rope_exp.config import RunConfig
from rope_exp.errors import EXIT_CODES, EXIT_FAILED, ConfigError, first_line, log
from rope_exp.files import write_atomically
from rope_exp.folder import METRICS, read_env, read_metrics, read_result
from rope_exp.sections import TrackerConfig

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
                for row in read_metrics(folder):
                    self.row(row)

    def row(self, row: Mapping[str, Any]) -> None:
        """Send a row of metrics, unless the run holds it already."""
        if self.run is None:
            return
        values = _known(row)
        step = values.pop("step")
        with self._guarded():
            # trackio keeps the first step of a resumed run in a private attribute.
            if step >= getattr(self.run, "starting_step", getattr(self.run, "_next_step", 0)):
                self.run.log(values, step=step)

    def __enter__(self) -> "Tracker":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Report the end of the run: the status in result.json, else "stopped" or "failed"."""
        if self.run is None:
            return
        with self._guarded():
            # trackio stores only rows.
            if self.name == "trackio":
                self.run.finish()
                return
            result = read_result(self.folder) or {"status": "failed" if kind else "stopped"}
            self.run.summary.update(_known(result))
            if result["status"] == "stopped":
                self.run.mark_preempting()
            self.run.finish(exit_code=EXIT_CODES.get(result["status"], EXIT_FAILED))

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
    """Refuse a tracker that is not installed; without a key, log it and switch wandb offline."""
    for tracker in {config.tracker for config in configs}:
        name = tracker.name
        if name != "none" and find_spec(name) is None:
            raise ConfigError("tracker", name, f"is not installed; `pip install {name}`")
        modes = {tracker.mode, os.environ.get("WANDB_MODE", "online")}
        if name != "wandb" or modes != {"online"}:
            continue

        import wandb

        fault = "no API key"
        try:
            if wandb.login(prompt=False, verify=False):
                continue
        except wandb.Error as error:
            fault = first_line(error)
        os.environ["WANDB_MODE"] = "offline"
        log(
            f"wandb: {fault}; tracking offline. Log in with `wandb login` or WANDB_API_KEY; "
            "`wandb sync` uploads offline runs"
        )


def _begin(config: RunConfig, folder: Path) -> Any:
    """Return the tracker's run, new or resumed; wandb's own variables of the environment apply."""
    tracker = config.tracker
    env = read_env(folder)
    facts = {
        # A tracker gets no code: its hash identifies it.
        **config.replace("pe", source=None).to_dict(),
        "rotate": "".join(config.pe.rotate) or "none",
        "params": env.get("params"),
        "tokens_planned": config.train.num_tokens,
        "group_sha256": config.group_sha256,
        "env": env,
    }
    # The id is drawn once. A power cut may have left an empty file.
    path = folder / f"{tracker.name}_id"
    if not path.exists() or not path.read_text(encoding="ascii"):
        write_atomically(path, secrets.token_hex(8))
    run_id = path.read_text(encoding="ascii")

    defaults = {
        "WANDB_RUN_ID": run_id,
        "WANDB_NAME": config.name[:128],  # wandb's limit
        "WANDB_RUN_GROUP": config.group,
        "WANDB_JOB_TYPE": config.pe.label,
        "WANDB_DIR": str(folder),
        "WANDB_PROJECT": tracker.project,
        "WANDB_MODE": tracker.mode,
    }
    for variable, value in (SETTINGS | defaults).items():
        os.environ.setdefault(variable, value)
    if tracker.mode != TrackerConfig.mode:
        os.environ["WANDB_MODE"] = tracker.mode
    if tracker.project != TrackerConfig.project:
        os.environ["WANDB_PROJECT"] = tracker.project
    module = importlib.import_module(tracker.name)
    if tracker.name == "trackio":
        # It resumes by name, so two runs must not share one.
        return module.init(
            project=tracker.project,
            name=f"{os.environ['WANDB_NAME']}-{run_id}",
            group=config.group,
            config=_known(facts),
            resume="allow",
        )

    # A login in this process has read the environment already: let wandb read it anew.
    module.teardown()
    # A later start writes an offline run again, from the first row.
    resume = None if os.environ["WANDB_MODE"] == "offline" else "allow"
    run = module.init(config=_known(facts), resume=resume)
    run.define_metric("tokens", hidden=True)
    run.define_metric("*", step_metric="tokens")
    return run


def _known(values: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out null values, for which wandb would show an empty panel."""
    return {key: value for key, value in values.items() if value is not None}
