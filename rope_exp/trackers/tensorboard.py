"""TensorBoard: event files in the run's folder."""

import json
from collections.abc import Mapping
from typing import Any

from rope_exp.config import RunConfig
from rope_exp.trackers._base import BaseTracker


class Tracker(BaseTracker):
    """A run's event files, with its curves, and its config and result as texts."""

    def begin(self, config: RunConfig, shown: dict[str, Any]) -> Any:
        # The package is optional, and `check` needs this file without it.
        from torch.utils.tensorboard import SummaryWriter

        # Each start sends every row: this hides those of earlier starts, perhaps cut off.
        self.writer = SummaryWriter(self.folder / "tensorboard", purge_step=0, flush_secs=10)
        self.text("config", shown)
        return self

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Write a row as a point of each curve."""
        for name, value in values.items():
            self.writer.add_scalar(name, value, step)

    def text(self, name: str, values: Mapping[str, Any]) -> None:
        """Write values as a block of code."""
        self.writer.add_text(name, f"```\n{json.dumps(values, indent=2)}\n```")

    def finish(self, result: Mapping[str, Any]) -> None:
        self.text("result", result)
        self.writer.close()
