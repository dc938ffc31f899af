"""The training of one run on one rank: its loop, its metrics rows, and its result."""

import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NotRequired, Protocol, cast

import torch
from typing_extensions import TypedDict

from rope_exp import checkpoint, init_from
from rope_exp.batches import held_out_rows
from rope_exp.config import RunConfig
from rope_exp.corpus import DataSet
from rope_exp.decoder import Decoder, held_out_loss, llama_weights, weights, weights_sha256
from rope_exp.errors import CheckpointError, log
from rope_exp.files import json_sha256, read_json, write_json
from rope_exp.folder import PROBES, RESULT, MetricsWriter, checked, list_steps
from rope_exp.identity import import_choice
from rope_exp.machine import SPIN_ALONE
from rope_exp.optimizer import make_state, optimizer_tensors
from rope_exp.parallel import Parallel
from rope_exp.probes._windows import Finished
from rope_exp.progress import Progress, describe_row
from rope_exp.sections import Natural, NonNegative, OrderSha256, Sha256, TrainConfig
from rope_exp.signals import StopRequested, StopSignal
from rope_exp.step import Outcome, Throughput, TrainingStep, learning_rate
from rope_exp.trackers._base import BaseTracker, tracker_class

LEAST_BUSY = 0.6  # of the threads of a step; alone, two threads are at 0.99


class State(TypedDict):
    """The contents of a checkpoint's state.json."""

    step: Natural
    order_sha256: OrderSha256
    elapsed_s: NonNegative
    config_sha256: Sha256
    data_sha256: Sha256
    init_sha256: Sha256
    # Absent in checkpoints of older versions.
    shared_init_sha256: NotRequired[Sha256]


class Trainer:
    """One run on this rank, from its newest checkpoint or step 0 to its end or a stop.

    Args:
        config: the run's resolved config.
        folder: the run's folder.
        data: the run's data.
        parallel: the ranks of the run; each makes a Trainer.
        stop: the signals that request a stop of this process.

    Attributes:
        step: the last step made; its outcome may not have been read.
        identity: the hashes that state.json and result.json hold.

    Raises:
        CheckpointError: the newest checkpoint is damaged or of another run, or a rank begins
            elsewhere than rank 0.
        ConfigError: run.init_from names weights or a tokenizer that do not fit.
        RunFolderError: the folder that run.init_from names is damaged.
    """

    def __init__(
        self, config: RunConfig, folder: Path, data: DataSet, parallel: Parallel, stop: StopSignal
    ) -> None:
        self.config = config
        self.folder = folder
        self.checkpoints = folder / "checkpoints"
        self.data = data
        self.parallel = parallel
        self.stop = stop
        self.reads_late = parallel.device.type == "cuda"
        train = config.train

        self.decoder = Decoder(config.architecture(data.vocab_size))
        self.decoder.initialise(config.seed)
        if config.init_weights is not None and not list_steps(self.checkpoints):
            beginning = init_from.load_origin_weights(self.decoder, config, data.tokenizer_json)
            if parallel.is_main:
                log(f"{config.name}: {beginning}")
        self.identity = {
            "config_sha256": config.config_sha256,
            "data_sha256": data.data_sha256,
            "init_sha256": weights_sha256(weights(self.decoder)),
            "shared_init_sha256": weights_sha256(llama_weights(self.decoder)),
        }
        self.num_parameters = sum(parameter.numel() for parameter in self.decoder.parameters())
        if train.compile:
            self.decoder.compile_parts()
        self.train_step = TrainingStep(config, self.decoder, data, parallel, self.should_stop)
        self.held_out_rows = held_out_rows(config, data)
        share = train.global_batch_size // parallel.world_size
        self.rows_at_once = train.rows_at_once(share, train.seq_len)
        self.throughput = Throughput(config, data.vocab_size, parallel.device)

        self.start = self.load()
        self.step = self.start["step"]
        self.saved_step = self.step
        self.train_step.order_sha256 = self.start["order_sha256"]
        if parallel.group is not None:
            parallel.group.check_same_start(self.start | self.identity, folder)
            if parallel.world_size > 2 and self.step < train.num_steps:
                self.train_step.fix_bucket_order(self.step + 1)

    def load(self) -> dict[str, Any]:
        """Load the newest checkpoint, if there is one, into the model and the optimizer.

        Returns:
            The checkpoint's state; without a checkpoint, the state of step 0.
        Raises:
            CheckpointError: checkpoints are damaged, or the newest is of another run.
        """
        saved = checkpoint.load_newest(self.checkpoints)
        if saved is None:
            return {"step": 0, "order_sha256": "", "elapsed_s": 0.0}

        where = f"the checkpoint of step {saved.step} in {self.folder}"
        state = checked(f"{where}: state.json", saved.state, State)
        if state.get("unrecorded") is not None:
            reason = "was saved in an evaluation, by an older version; remove this checkpoint"
            raise CheckpointError(f"{where} {reason}")
        if self.config.init_weights is not None:
            # They came from another run, which may be gone.
            initial = {"init_sha256", "shared_init_sha256"} & state.keys()
            self.identity |= {key: state[key] for key in sorted(initial)}
        for key, value in self.identity.items():
            if state.get(key, value) != value:
                raise CheckpointError(
                    f"{where} is of another run: its {key} is {state[key]:.12} and this run's "
                    f"{value:.12}; restore what it was trained on, or move the folder away"
                )

        make_state(self.train_step.optimizer, self.decoder)
        moments = optimizer_tensors(self.train_step.optimizer, self.decoder)
        expected = {name: moment.shape for name, moment in moments.items()}
        shapes = {name: moment.shape for name, moment in saved.optimizer.items()}
        if shapes != expected:
            raise CheckpointError(f"{where} is of another optimizer")
        checkpoint.load_weights(where, self.decoder, saved.model)
        for name, moment in moments.items():
            moment.copy_(saved.optimizer[name])
        return state

    def train(self) -> str:
        """Train, and ask the probes; return "finished", "diverged" or "stopped"."""
        writer = RunWriter(self) if self.parallel.is_main else None
        ended = "failed"
        try:
            status = self._loop(writer)
            if status == "finished" and self.config.train.probes:
                is_stopped = False
                if writer is not None:
                    is_stopped = not self._answer_probes()
                # The other ranks wait here.
                if self.parallel.any(is_stopped):
                    status = "stopped"
            if writer is not None:
                writer.end(status)
            ended = status
        finally:
            if writer is not None and writer.tracker is not None:
                writer.tracker.end(ended)
        return status

    def _answer_probes(self) -> bool:
        """Write the probes' answers; return whether all answered before a stop."""
        with self.parallel.accelerator.autocast():
            answers = self.ask(self.config.train.probes)
        if answers is None:
            return False
        write_json(self.folder / PROBES, answers)
        return True

    def _loop(self, writer: "RunWriter | None") -> str:
        train = self.config.train
        for outcome in self._outcomes():
            stage = train.stage_at(outcome.step)
            self.throughput.step(stage.tokens_per_step, stage.seq_len)
            if outcome.first_bad_step:
                # The weights are still those before the bad step, even if a later one was started.
                self.step = outcome.first_bad_step - 1
                self.train_step.order_sha256 = outcome.order_before
                return "diverged"
            due = due_after(train, outcome.step)

            validation: dict[str, float] = {}
            if due & {"eval", "end"}:
                loss = self.evaluate()
                # The update may have spoilt the weights; the step's own loss is from before it.
                if not math.isfinite(loss):
                    return "diverged"
                validation = {"val/loss": loss}

            if writer is not None and due & {"metrics_row", "eval", "end"}:
                writer.metrics_row(outcome, validation)
            # Do not time the step after an evaluation, nor the step in which a stage compiles.
            if validation or "stage" in due:
                self.throughput.pause()

            if due & {"save", "end"}:
                self._save(writer)

        if self.step == train.num_steps:
            return "finished"
        self._save(writer)
        return "stopped"

    def _outcomes(self) -> Iterator[Outcome]:
        """Yield the outcome of each step that is made until the end or a stop.

        On a GPU the next step starts before an outcome is read, unless an evaluation or a
        checkpoint is due: these need the step's own weights.
        """
        unread: list[Callable[[], Outcome]] = []
        while self.step < self.config.train.num_steps:
            started = self.train_step(self.step + 1)
            if started is None:
                break
            self.step += 1
            unread.append(started)
            due = due_after(self.config.train, self.step)
            may_wait = self.reads_late and due <= {"metrics_row"}
            num_waiting = 1 if may_wait else 0
            while len(unread) > num_waiting:
                yield unread.pop(0)()

        for read in unread:
            yield read()

    def should_stop(self) -> bool:
        """Return whether any rank was asked to stop, on every rank."""
        return self.parallel.any(self.stop.requested)

    def evaluate(self) -> float:
        """Return the mean loss over held-out targets."""
        with self.parallel.accelerator.autocast():
            return held_out_loss(self.decoder, self.held_out_rows, self.rows_at_once, self.parallel)

    def _save(self, writer: "RunWriter | None") -> None:
        """Save this step once, on rank 0, after the metrics rows up to it are on the disk."""
        if self.step == self.saved_step:
            return
        if writer is not None:
            writer.metrics.sync()
            state = {
                "order_sha256": self.train_step.order_sha256,
                "elapsed_s": writer.elapsed_s(),
                **self.identity,
            }
            moments = optimizer_tensors(self.train_step.optimizer, self.decoder)
            checkpoint.save(self.checkpoints, self.step, weights(self.decoder), moments, state)
            checkpoint.prune(self.checkpoints, self.config.train.keep_checkpoints, self.step)
        self.parallel.wait()
        self.saved_step = self.step
        self.throughput.pause()

    @torch.no_grad()
    def ask(self, probes: Sequence[str]) -> dict[str, Any] | None:
        """Return each probe's answer, as plain values, by its name; None if asked to stop."""
        with torch.compiler.set_stance("force_eager"), suppress(StopRequested):
            return {name: probe_leaf(name).ask(self) for name in probes}
        return None


class Probe(Protocol):
    """A file of probes/, as the trainer asks it; a config meets it as a `config.ProbeRule`."""

    def ask(self, trainer: Finished) -> dict[str, Any]:
        """Return the answer, as plain values."""


def probe_leaf(name: str) -> Probe:
    """Return the file of probes/ that train.probes names."""
    return cast("Probe", import_choice("probes", name, "train.probes"))


def due_after(train: TrainConfig, step: int) -> set[str]:
    """Return the actions due after a step: metrics_row, eval, save, end or stage (one ends)."""
    periods = {
        "metrics_row": train.log_every,
        "eval": train.eval_every,
        "save": train.save_every,
        "end": train.num_steps,
        "stage": train.stage_at(step).steps[-1],
    }
    # "end" and "stage" are last steps: a step divides by them only when it equals them.
    return {action for action, period in periods.items() if step % period == 0}


def describe_waiting(busy: float, num_threads: int, *, spins: bool) -> str:
    """Return a sentence if a step's threads mostly wait, as they do beside other work, or "".

    Threads of a step wait for each other a thousand times, so beside a busy process two threads
    may take longer than one. Their number changes the last bits of a loss, so a user chooses it.

    Args:
        busy: the threads that a step kept busy.
        num_threads: those that it has.
        spins: waiting threads do not make room; a repeated command looks again.
    """
    if num_threads == 1 or busy >= LEAST_BUSY * num_threads:
        return ""
    words = f"steps keep {busy:.1f} of {num_threads} threads busy, as beside other work"
    if spins:
        words += (
            "; if you stop the run and repeat the command, its waiting threads make room for it"
        )
    # Alone, fewer threads would make a sweep train several runs at a time.
    fewer = f"launch.num_threads={max(round(busy), 1)} launch.max_parallel=1"
    return f"{words}; {fewer} may be faster"


class RunWriter:
    """The metrics rows and the result of a run in training, written by rank 0."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        self.config = trainer.config
        start = trainer.start
        checkpoint.clear_leftovers(trainer.checkpoints)
        self.metrics = MetricsWriter(trainer.folder, start["step"])
        self.tracker: BaseTracker | None = None
        tracker = tracker_class(self.config.tracker.name)
        if tracker is not None:
            self.tracker = tracker(self.config, trainer.folder)
        self.progress = Progress(self.config.name, self.config.train.num_steps)
        # A GPU's work is not that of threads.
        self.has_told_waiting = trainer.parallel.device.type != "cpu"
        # The time at which the run would have begun without interruptions.
        self.began = time.perf_counter() - start["elapsed_s"]

    def elapsed_s(self) -> float:
        """Return the run's training time so far, including earlier starts."""
        return round(time.perf_counter() - self.began, 3)

    def metrics_row(self, outcome: Outcome, validation: Mapping[str, float]) -> None:
        """Write a step's line to metrics.jsonl, and show it."""
        train = self.config.train
        row = {
            "step": outcome.step,
            "tokens": train.tokens_until(outcome.step),
            "train/loss": outcome.loss,
            **validation,
            "lr": learning_rate(outcome.step, self.config),
            "grad_norm": outcome.grad_norm,
            **self.trainer.throughput.speed(train.log_every),
            "elapsed_s": self.elapsed_s(),
        }
        self.metrics.write(row)
        if self.tracker is not None:
            self.tracker.row(row)
        line = f"step {outcome.step}/{train.num_steps}{describe_row(row)}"
        self.progress.show(outcome.step, line, at_once="val/loss" in row)
        if not self.has_told_waiting:
            self.judge_threads()

    def judge_threads(self) -> None:
        """Say once if the threads of the last steps mostly waited."""
        busy = self.trainer.throughput.busy_threads()
        if busy is None:
            return
        spins = os.environ.get("GOMP_SPINCOUNT") == SPIN_ALONE
        waiting = describe_waiting(busy, torch.get_num_threads(), spins=spins)
        if waiting:
            self.has_told_waiting = True
            log(f"{self.config.name}: {waiting}")

    def end(self, status: str) -> None:
        """Close metrics.jsonl, and write result.json unless the run was stopped and may resume."""
        self.metrics.close()
        if status == "stopped":
            return

        config = self.config
        trainer = self.trainer
        last = self.metrics.last
        finished = status == "finished"
        speed = trainer.throughput.speed()
        if speed["tokens_per_s"] is None:
            speed = {key: last.get(key) for key in speed}
        result = {
            "status": status,
            "pe": config.pe.label,
            "rotate": list(config.pe.rotate),
            "seed": config.seed,
            "params": trainer.num_parameters,
            "order_sha256": trainer.train_step.order_sha256,
            **trainer.identity,
            "tokens": config.train.tokens_until(trainer.step),
            "steps": trainer.step,
            "val/loss": last["val/loss"] if finished else None,
            "train/loss_last": last.get("train/loss"),
            "group_sha256": config.group_sha256,
            **speed,
            "wall_s": self.elapsed_s(),
        }
        if not finished:
            result["diverged_step"] = trainer.step + 1
        elif config.train.probes:
            result["probes_sha256"] = json_sha256(read_json(trainer.folder / PROBES))
        write_json(trainer.folder / RESULT, result)
