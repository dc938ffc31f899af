"""Weights & Biases."""

import os
from collections.abc import Mapping
from typing import Any

from rope_exp.config import RunConfig
from rope_exp.errors import EXIT_CODES, EXIT_FAILED, first_line, log
from rope_exp.sections import TrackerConfig
from rope_exp.trackers._base import BaseTracker

# Settings, unless the environment sets them: timeouts in seconds for a broken network, and no
# upload of the terminal, the command line or the checkout.
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


class Tracker(BaseTracker):
    """A run at wandb."""

    @classmethod
    def check(cls, tracker: TrackerConfig) -> None:
        """Refuse wandb if it is not installed; without a key, log it and switch wandb offline."""
        super().check(tracker)
        if {tracker.mode, os.environ.get("WANDB_MODE", "online")} != {"online"}:
            return

        import wandb

        fault = "no API key"
        try:
            if wandb.login(prompt=False, verify=False):
                return
        except wandb.Error as error:
            fault = first_line(error)
        os.environ["WANDB_MODE"] = "offline"
        advice = "log in with `wandb login` or WANDB_API_KEY; `wandb sync` uploads offline runs"
        log(f"wandb: {fault}; tracking offline; {advice}")

    def begin(self, config: RunConfig, shown: dict[str, Any]) -> Any:
        tracker = config.tracker
        defaults = {
            "WANDB_RUN_ID": self.run_id(),
            "WANDB_NAME": config.name[:128],  # wandb's limit
            "WANDB_RUN_GROUP": config.group,
            "WANDB_JOB_TYPE": config.pe.label,
            "WANDB_DIR": str(self.folder),
            "WANDB_PROJECT": tracker.project,
            "WANDB_MODE": tracker.mode,
        }
        # The environment counts where the config keeps a default.
        if tracker.mode != TrackerConfig.mode:
            os.environ["WANDB_MODE"] = tracker.mode
        if tracker.project != TrackerConfig.project:
            os.environ["WANDB_PROJECT"] = tracker.project
        os.environ.update(SETTINGS | defaults | os.environ)

        import wandb

        # A login in this process has read the environment already: let wandb read it anew.
        wandb.teardown()
        # A later start writes an offline run again, from the first row.
        is_offline = os.environ["WANDB_MODE"] == "offline"
        run = wandb.init(config=shown, resume=None if is_offline else "allow")
        run.define_metric("tokens", hidden=True)
        run.define_metric("*", step_metric="tokens")
        return run

    def first_step(self) -> int:
        return self.run.starting_step

    def finish(self, result: Mapping[str, Any]) -> None:
        self.run.summary.update(result)
        if result["status"] == "stopped":
            self.run.mark_preempting()
        self.run.finish(exit_code=EXIT_CODES.get(result["status"], EXIT_FAILED))
