"""The options of the command line that every part of the bench shares."""

import argparse
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks import ours
from rope_exp.run.provenance import machine_facts
from rope_exp.system.errors import ConfigError
from rope_exp.system.machine import has_compiler
from rope_exp.system.processes import output_of


class Bench:
    """The checked options, and facts about the machine."""

    def __init__(self, options: argparse.Namespace) -> None:
        """Check the config of every model.

        Raises:
            ConfigError: There is no such model or key, or this machine cannot measure it.
        """
        self.options = options
        self.rounds: int = options.rounds
        self.models: list[str] = options.models.split(",")

        [self.device, *_] = [ours.settled(self.words(name)).launch.device for name in self.models]
        self.facts = machine_facts(self.device)
        self.folder = options.out or Path("results", "bench", self.device)
        self.folder.mkdir(parents=True, exist_ok=True)

    def asked(self, model: str) -> dict[str, Any]:
        """Return the options that define a measurement, with the commit of another checkout."""
        options = self.options
        tree = None
        if options.tree:
            with suppress(ChildProcessError):
                tree = output_of("git", "-C", str(options.tree), "rev-parse", "HEAD")
        return {"words": self.words(model), "arms": options.arms, "tree": tree}

    def words(self, model: str, *more: str) -> list[str]:
        """Return the overrides for training of a size here: compiled, in one process.

        On a GPU a step has two micro-batches, which keeps it short.
        """
        compiled = "train.compile=true"
        words = [f"model={model}", "pe=qk_rope", compiled, *self.options.overrides, *more]
        config = ours.settled(words)
        launch = config.launch
        if launch.num_processes != 1:
            allowed = "must be 1: one process is measured"
            raise ConfigError("launch.num_processes", launch.num_processes, allowed)
        if config.train.compile and not has_compiler(launch.device):
            raise ConfigError("train.compile", True, "this machine has no compiler")

        micro = config.train.micro_batch_size
        if launch.device == "cuda" and micro is not None:
            words.append(f"train.global_batch_size={2 * micro}")
        return words
