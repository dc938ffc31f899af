"""The record of a run in training: its environment, its metrics rows and its result."""

import time
from collections.abc import Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from rope_exp.config.run import RunConfig
from rope_exp.run import checkpoint
from rope_exp.run.folder import RESULT, OriginFacts, probes_sha256
from rope_exp.run.metrics import MetricsWriter
from rope_exp.run.provenance import MARKED, machine_facts, spelled
from rope_exp.run.tracker import Tracker
from rope_exp.system.console import Progress, log
from rope_exp.system.files import write_json
from rope_exp.training.beginning import find_origin
from rope_exp.training.parallel import Parallel
from rope_exp.training.resume import Start
from rope_exp.training.schedule import learning_rate
from rope_exp.training.step import Outcome
from rope_exp.training.throughput import Speed, Throughput

# A step on a CPU that takes more than twice its CPU time waits for other processes.
STARVED = 0.5


class Record(ExitStack):
    """The rows and the result of a run in training; ranks other than 0 write nothing.

    Attributes:
        was_starved: whether it was logged that other work slows this run.
        began: the time at which the run would have begun without interruptions.
        writer: writes metrics.jsonl; None on ranks other than 0.
        tracker: an experiment tracker beside it; None on ranks other than 0.
        progress: the progress display.

    Args:
        start: the state from which the run begins.
    Raises:
        RecordError: metrics.jsonl is damaged; it is not changed.
    """

    def __init__(
        self, config: RunConfig, folder: Path, start: Start, throughput: Throughput, is_main: bool
    ) -> None:
        super().__init__()
        self.config = config
        self.folder = folder
        self.throughput = throughput
        self.writer: MetricsWriter | None = None
        self.tracker: Tracker | None = None
        if is_main:
            checkpoint.clear_leftovers(folder / "checkpoints")
            # A step whose evaluation was interrupted gets its row when it is evaluated again.
            num_recorded = start["step"] - (start["unrecorded"] is not None)
            self.writer = MetricsWriter(folder, num_recorded)
            self.tracker = self.enter_context(Tracker(config, folder))
        self.was_starved = False
        self.began = time.perf_counter() - start["elapsed_s"]
        progress = Progress(config.name, config.train.num_steps, start["step"], shown=is_main)
        self.progress = self.enter_context(closing(progress))
        if config.train.compile:
            progress.compiling()

    def elapsed_s(self) -> float:
        """Return the run's training time so far, including earlier starts."""
        return round(time.perf_counter() - self.began, 3)

    def step(self, outcome: Outcome) -> None:
        """Count a finished step."""
        stage = self.config.train.stage_at(outcome.step)
        self.throughput.step(stage.tokens_per_step, stage.seq_len)
        self.progress.step(outcome.step, outcome.loss)

    def row(self, outcome: Outcome, validation: Mapping[str, float]) -> None:
        """Write a step's row to metrics.jsonl."""
        if self.writer is None or self.tracker is None:
            return

        train = self.config.train
        speed = self.throughput.recent(train.log_every)
        row = {
            "step": outcome.step,
            "tokens": train.tokens_until(outcome.step),
            "train/loss": outcome.loss,
            **validation,
            "lr": learning_rate(outcome.step, self.config),
            "grad_norm": outcome.grad_norm,
            "tokens_per_s": speed.tokens_per_s,
            "mfu": speed.mfu,
            "elapsed_s": self.elapsed_s(),
        }
        self.writer.write(row)
        self.tracker.row(row)
        self.progress.row(row)

        num_cores = self.throughput.num_cores(train.log_every)
        is_starved = num_cores is not None and num_cores < STARVED
        if is_starved and self.config.launch.device == "cpu" and not self.was_starved:
            self.was_starved = True
            log(f"{self.config.name}: other work on this machine leaves it {num_cores:.2f} cores")

    def end(self, status: str, steps: int, facts: Mapping[str, Any]) -> None:
        """Close metrics.jsonl, and write result.json unless the run was stopped and may resume.

        Args:
            status: "finished", "diverged" or "stopped".
            steps: the number of steps that produced the run's weights.
            facts: further entries of result.json.
        """
        if self.writer is None:
            return
        self.writer.close()
        if status == "stopped":
            return

        config = self.config
        last = self.writer.last
        finished = status == "finished"
        speed = self.throughput.overall()
        if speed.tokens_per_s is None:
            speed = Speed(last.get("tokens_per_s"), last.get("mfu"))
        result = {
            "status": status,
            "pe": config.pe.label,
            "rotate": list(config.pe.rotate),
            "seed": config.seed,
            **facts,
            "tokens": config.train.tokens_until(steps),
            "steps": steps,
            "val/loss": last["val/loss"] if finished else None,
            "train/loss_last": last.get("train/loss"),
            "group_sha256": config.group_sha256,
            "tokens_per_s": speed.tokens_per_s,
            "mfu": speed.mfu,
            "wall_s": self.elapsed_s(),
        }
        if not finished:
            result["diverged_step"] = steps + 1
        elif config.train.probes:
            result["probes_sha256"] = probes_sha256(self.folder)
        write_json(self.folder / RESULT, result)


def environment(
    config: RunConfig, parallel: Parallel, old: Mapping[str, Any], **facts: Any
) -> dict[str, Any]:
    """Return env.json: the machine and software that train this run, and further `facts`.

    Args:
        old: env.json of the run's previous start, {} at the first. Changes since then are noted
            in `marks`, and the code of earlier starts in `earlier_git`; the origin of the
            initial weights is kept.
    """
    here = {"world_size": parallel.world_size, **machine_facts(parallel.device.type)}
    changed = [
        f"went on with {key} {spelled(here[key])} after {spelled(old[key])}"
        for key in MARKED
        if key in old and old[key] != here[key]
    ]
    if config.init_weights is not None:
        facts["init_from"] = old.get("init_from") or _origin_facts(config)
    earlier_git = list(old.get("earlier_git", []))
    if "git" in old and old["git"] != here["git"]:
        earlier_git.append(old["git"])
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return {
        **here,
        "marks": [*old.get("marks", []), *changed],
        "earlier_git": earlier_git,
        "started": [*old.get("started", []), now],
        "deterministic": config.train.deterministic,
        "accelerate": parallel.facts(),
        **facts,
    }


def _origin_facts(config: RunConfig) -> OriginFacts:
    origin = find_origin(config)
    return {
        "pe": origin.config.pe.label,
        "seed": origin.config.seed,
        "step": origin.step,
        "config_sha256": origin.config.config_sha256,
        "weights_sha256": origin.weights_sha256,
    }
