"""trackio, on this machine or in a Space. It stores only rows."""

import os
from importlib import import_module
from typing import Any

from rope_exp.config import RunConfig
from rope_exp.trackers._base import BaseTracker


class Tracker(BaseTracker):
    """A run at trackio."""

    def begin(self, config: RunConfig, shown: dict[str, Any]) -> Any:
        # It resumes by name, so two runs must not share one. A sweep names its runs for wandb.
        name = os.environ.get("WANDB_NAME", config.name[:128])
        return import_module("trackio").init(
            project=config.tracker.project,
            name=f"{name}-{self.run_id()}",
            group=config.group,
            config=shown,
            resume="allow",
        )

    def first_step(self) -> int:
        # A private attribute: a resumed run gives it nowhere else.
        return getattr(self.run, "_next_step", 0)
