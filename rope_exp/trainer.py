"""The training of one run on one rank: its steps, its loop, its rows, and its result."""

import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, NotRequired

import torch
from torch import Tensor, nn
from typing_extensions import TypedDict

from rope_exp import checkpoint
from rope_exp.batches import chain_sha256, held_out_rows, training_batch
from rope_exp.config import RunConfig, TrainConfig, differing_keys
from rope_exp.costs import flops_per_token
from rope_exp.decoder import Decoder, weights
from rope_exp.errors import CheckpointError, Progress, log
from rope_exp.evaluate import Inputs, held_out_loss, on_device
from rope_exp.files import json_sha256, read_json, write_json
from rope_exp.folder import PROBES, RESULT, MetricsWriter, checked
from rope_exp.identity import Natural, NonNegative, OrderSha256, Sha256, chosen
from rope_exp.machine import MARKED, machine_facts, spelled
from rope_exp.origin import begin, find_origin
from rope_exp.parallel import Parallel
from rope_exp.prepare import DataSet
from rope_exp.signals import Stopped, StopSignal
from rope_exp.step import (
    CaptureError,
    StepGraphs,
    Throughput,
    build_optimizer,
    learning_rate,
    make_state,
    optimizer_tensors,
    peak_flops_per_s,
)

# -- one step ------------------------------------------------------------------------------------


class Outcome(NamedTuple):
    """The outcome of a step, the same on every rank."""

    step: int
    loss: float  # the mean over the targets of the global batch, in the data's unit
    grad_norm: float
    first_bad_step: int  # 0: none so far
    order_before: str  # order_sha256 without this step


@dataclass
class TrainingStep:
    """Updates a model, which is moved to the device here, from the global batch of one step.

    Attributes:
        should_stop: called before every micro-batch, and equally often on every rank; before a step
            that is one graph, once.
        order_sha256: hash of the batches of all steps so far; on rank 0 only.
        first_bad_step: on the device; 0: none so far.
        graphs: make a step as one graph; None: it is launched kernel by kernel.
    """

    config: RunConfig
    decoder: Decoder
    data: DataSet
    parallel: Parallel
    should_stop: Callable[[], bool]
    order_sha256: str = ""

    def __post_init__(self) -> None:
        self.model = self.parallel.prepare(self.decoder)
        self.optimizer = build_optimizer(self.decoder, self.config.optim)
        self.first_bad_step = torch.zeros((), dtype=torch.int64, device=self.parallel.device)
        self.graphs: StepGraphs | None = None
        can_capture = os.environ.get("ROPE_EXP_GRAPHS") != "0" and self.parallel.world_size == 1
        if self.parallel.device.type == "cuda" and can_capture:
            self.graphs = StepGraphs(self)

    def __call__(self, step: int) -> Callable[[], Outcome] | None:
        """Update the model once from the global batch of `step`.

        Returns:
            A function that waits for the device to finish the step, and returns its outcome; or
            None, with nothing updated, if a rank was asked to stop before the last micro-batch.
        """
        inputs, num_targets, order_sha256 = self._get_batch(step)
        groups = self.optimizer.param_groups
        rate = learning_rate(step, self.config)
        rates = [rate * group.get("rate", 1.0) for group in groups]

        outcome = None
        if self.graphs is not None:
            if self.should_stop():
                return None
            try:
                outcome = self.graphs(inputs, step, num_targets, rates)
            except CaptureError as error:
                reason = f"steps are launched kernel by kernel, not as a graph: {error}"
                log(f"{self.config.name}: {reason}")
                self.graphs = None
                self.optimizer.zero_grad(set_to_none=True)
        if self.graphs is None:
            for group, group_rate in zip(groups, rates, strict=True):
                group["lr"] = group_rate
            outcome = self.update(inputs, step, num_targets, self.should_stop)
            self.optimizer.zero_grad(set_to_none=True)
        if outcome is None:
            return None

        order_before = self.order_sha256
        self.order_sha256 = order_sha256
        # On a GPU, torch allocates pinned memory for this copy.
        on_host = outcome.to("cpu", non_blocking=True)
        copied = torch.cuda.current_stream().record_event() if outcome.is_cuda else None

        def read() -> Outcome:
            if copied is not None:
                copied.synchronize()
            loss, grad_norm, first_bad_step = on_host.tolist()
            return Outcome(step, loss, grad_norm, int(first_bad_step), order_before)

        return read

    def _get_batch(self, step: int) -> tuple[Inputs, int, str]:
        """Return this rank's rows, the targets of all ranks, and order_sha256 with this batch."""
        batch = training_batch(self.config, self.data, step)
        order_sha256 = ""
        if self.parallel.is_main:
            order_sha256 = chain_sha256(self.order_sha256, batch.hashed_BS)
        share = len(batch.ids_BT) // self.parallel.world_size
        mine = batch.rows(slice(self.parallel.rank * share, (self.parallel.rank + 1) * share))
        return on_device(mine, self.parallel.device), batch.num_targets, order_sha256

    def update(
        self,
        inputs: Inputs,
        step: int | Tensor,
        num_targets: int | Tensor,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> Tensor | None:
        """Update the model from the inputs of all micro-batches, added to the gradients there are.

        The loss is the mean over the targets of the global batch: each micro-batch gives summed
        nats, divided by the global count. The wrapped model averages gradients over the ranks,
        hence the factor `world_size`. In a graph, no number is the host's.

        Returns:
            [loss, grad_norm, first_bad_step] in float64, on the device; None if asked to stop.
        """
        scale = self.parallel.world_size / num_targets
        loss = torch.zeros((), device=self.parallel.device)
        rows_at_once = self.config.train.rows_at_once(*inputs.ids_BT.shape)
        micro_batches = list(inputs.split(rows_at_once))
        for number, micro_batch in enumerate(micro_batches, start=1):
            if should_stop():
                return None
            with self.parallel.accumulate(self.model, last=number == len(micro_batches)):
                nats = micro_batch.nats(self.model)
                (nats * scale).backward()  # type: ignore[no-untyped-call]
            loss += nats.detach()

        loss = self.parallel.sum(loss / num_targets)
        norm = nn.utils.clip_grad_norm_(self.decoder.parameters(), self.config.optim.grad_clip)
        is_bad = ~(torch.isfinite(loss) & torch.isfinite(norm))
        first = is_bad & (self.first_bad_step == 0)
        self.first_bad_step.copy_(torch.where(first, step, self.first_bad_step))

        # In a bad step, the fused kernel leaves weights, moments and its step count unchanged.
        self.optimizer.found_inf = (self.first_bad_step > 0).float()  # type: ignore[attr-defined]
        self.optimizer.step()
        return torch.stack([loss.double(), norm.double(), self.first_bad_step.double()])

    def settle(self, step: int) -> None:
        """Let the ranks settle in which order they average gradients, by a pass thrown away.

        DistributedDataParallel reorders its buckets after its first average, and a sum of three or
        more ranks depends on the order: without this, a resume would not be exact.
        """
        if self.parallel.world_size > 2:
            inputs, *_ = self._get_batch(step)
            first = next(inputs.split(self.config.train.rows_at_once(*inputs.ids_BT.shape)))
            first.nats(self.model).backward()  # type: ignore[no-untyped-call]
            self.optimizer.zero_grad(set_to_none=True)


# -- the run -------------------------------------------------------------------------------------


def due_after(train: TrainConfig, step: int) -> set[str]:
    """Return the actions due after a step: row, eval, save, end, or stage (another begins)."""
    periods = {
        "row": train.log_every,
        "eval": train.eval_every,
        "save": train.save_every,
        "end": train.num_steps,
        "stage": train.stage_at(step).last_step,
    }
    # A step never exceeds the run's or its stage's last, so for these this is equality.
    return {action for action, period in periods.items() if step % period == 0}


class State(TypedDict):
    """The contents of a checkpoint's state.json."""

    step: Natural
    order_sha256: OrderSha256
    elapsed_s: NonNegative
    unrecorded: tuple[float, float] | None
    config_sha256: Sha256
    data_sha256: Sha256
    init_sha256: Sha256
    # Absent in checkpoints of older versions.
    shared_init_sha256: NotRequired[Sha256]


class Trainer:
    """One run on this rank, from its newest checkpoint or step 0 to its end or a stop.

    `step` is the last step made; its outcome may not have been read. Raises CheckpointError,
    RecordError or ConfigError if a checkpoint or run.init_from is damaged, or unfit for this run.
    """

    def __init__(
        self, config: RunConfig, folder: Path, data: DataSet, parallel: Parallel, stop: StopSignal
    ) -> None:
        self.config = config
        self.folder = folder
        self.data = data
        self.parallel = parallel
        self.stop = stop
        self.reads_late = parallel.device.type == "cuda"
        train = config.train

        self.decoder = Decoder(config.architecture(data.vocab_size))
        self.decoder.initialise(config.seed)
        initial = begin(self.decoder, config, folder, data.tokenizer_json, is_main=parallel.is_main)
        own = {"config_sha256": config.config_sha256, "data_sha256": data.data_sha256}
        self.identity = own | initial
        self.num_parameters = sum(parameter.numel() for parameter in self.decoder.parameters())
        if train.compile:
            self.decoder.compile_parts()
        self.train_step = TrainingStep(config, self.decoder, data, parallel, self.should_stop)
        self.held_out_rows = held_out_rows(config, data)
        share = train.global_batch_size // parallel.world_size
        self.rows_at_once = train.rows_at_once(share, train.seq_len)
        lengths = {stage.seq_len for stage in train.staged}
        self.throughput = Throughput(
            {length: flops_per_token(config, data.vocab_size, length) for length in lengths},
            peak_flops_per_s(parallel.device, parallel.world_size, train.peak_tflops),
        )

        self.start = self.load()
        self.step = self.saved_step = self.start["step"]
        self.train_step.order_sha256 = self.start["order_sha256"]
        mine = {"step": self.step, "order_sha256": self.start["order_sha256"], **self.identity}
        beginnings = parallel.gather(mine)
        for rank, theirs in enumerate(beginnings):
            # As without a shared disk.
            if keys := differing_keys(beginnings[0], theirs):
                raise CheckpointError(
                    f"process {rank} begins elsewhere than process 0 ({'; '.join(keys)}); all of "
                    f"them must see the same {folder} and the same data"
                )
        if self.step < train.num_steps:
            self.train_step.settle(self.step + 1)

    def load(self) -> dict[str, Any]:
        """Load the newest checkpoint or begin; return the state, and keep its initial hashes."""
        saved = checkpoint.load_newest(self.folder / "checkpoints")
        if saved is None:
            return {"step": 0, "order_sha256": "", "elapsed_s": 0.0, "unrecorded": None}

        where = f"the checkpoint of step {saved.step} in {self.folder}"
        state = checked(f"{where}: state.json", saved.state, State)
        for key, value in self.identity.items():
            if state.get(key, value) != value:
                raise CheckpointError(
                    f"{where} is of another run: its {key} is {state[key]:.12} and this run's "
                    f"{value:.12}; restore what it was trained on, or use run.fresh=true"
                )
        optimizer = self.train_step.optimizer
        make_state(optimizer, self.decoder)
        moments = optimizer_tensors(optimizer, self.decoder)
        shapes = {name: moment.shape for name, moment in moments.items()}
        if shapes != {name: moment.shape for name, moment in saved.optimizer.items()}:
            raise CheckpointError(f"{where} is of another optimizer")
        checkpoint.load_weights(where, self.decoder, saved.model)
        for name, moment in moments.items():
            moment.copy_(saved.optimizer[name])
        initial = {"init_sha256", "shared_init_sha256"} & state.keys()
        self.identity |= {key: state[key] for key in sorted(initial)}
        return state

    def train(self) -> str:
        """Train to the end or to a stop, and ask the probes of a run that finished.

        Returns "finished", "diverged", or "stopped": the same command resumes from the last step.
        """
        record = Record(self) if self.parallel.is_main else None
        status = "failed"
        try:
            status = self._loop(record)
            probes = self.config.train.probes if status == "finished" else ()
            answers: dict[str, Any] | None = {}
            if probes and record is not None:
                with self.parallel.autocast():
                    answers = self.ask(probes)
                if answers is not None:
                    write_json(self.folder / PROBES, answers)
            # The other ranks wait here until rank 0 has its answers or was asked to stop.
            if probes and self.parallel.any(answers is None):
                status = "stopped"
            if record is not None:
                record.end(status)
        finally:
            if record is not None and record.tracker is not None:
                record.tracker.end(status)
        return status

    def _loop(self, record: "Record | None") -> str:
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
                if loss is None:
                    self._save(record, unrecorded=(outcome.loss, outcome.grad_norm))
                    return "stopped"
                # The update may have spoilt the weights; the step's own loss is from before it.
                if not math.isfinite(loss):
                    return "diverged"
                validation = {"val/loss": loss}

            if record is not None and due & {"row", "eval", "end"}:
                record.row(outcome, validation)
            # Do not time the step after an evaluation, nor the step in which a stage compiles.
            if validation or "stage" in due:
                self.throughput.pause()

            if due & {"save", "end"}:
                self._save(record)

        if self.step == train.num_steps:
            return "finished"
        self._save(record)
        return "stopped"

    def _outcomes(self) -> Iterator[Outcome]:
        """Make steps until the end or a stop, and yield the outcome of each.

        If anything but a row is due at a step, no later step has started when its outcome is
        yielded: evaluations and checkpoints are of its weights.
        """
        if self.start["unrecorded"] is not None:
            loss, grad_norm = self.start["unrecorded"]
            yield Outcome(self.step, loss, grad_norm, 0, self.start["order_sha256"])

        unread: list[Callable[[], Outcome]] = []
        while self.step < self.config.train.num_steps:
            started = self.train_step(self.step + 1)
            if started is None:
                break
            self.step += 1
            unread.append(started)
            reads_late = self.reads_late and due_after(self.config.train, self.step) <= {"row"}
            while len(unread) > int(reads_late):
                yield unread.pop(0)()

        yield from (read() for read in unread)

    @torch.no_grad()
    def ask(self, probes: Sequence[str]) -> dict[str, Any] | None:
        """Return each probe's answer, as plain values, by its name; None if asked to stop."""
        with torch.compiler.set_stance("force_eager"), suppress(Stopped):
            return {name: chosen("probes", name, "train.probes").ask(self) for name in probes}
        return None

    def should_stop(self) -> bool:
        """Return whether any rank was asked to stop, on every rank."""
        return self.parallel.any(self.stop.requested)

    def evaluate(self) -> float | None:
        """Return the mean loss over held-out targets; None if asked to stop."""
        with self.parallel.autocast():
            return held_out_loss(
                self.decoder,
                self.held_out_rows,
                micro_batch_size=self.rows_at_once,
                device=self.parallel.device,
                parallel=self.parallel,
                should_stop=self.should_stop,
            )

    def _save(self, record: "Record | None", unrecorded: tuple[float, float] | None = None) -> None:
        """Save this step once, on rank 0, after the rows up to it are on the disk."""
        if self.step == self.saved_step:
            return
        if record is not None:
            record.writer.sync()
            state = {
                "order_sha256": self.train_step.order_sha256,
                "elapsed_s": record.elapsed_s(),
                "unrecorded": unrecorded,
                **self.identity,
            }
            folder = self.folder / "checkpoints"
            moments = optimizer_tensors(self.train_step.optimizer, self.decoder)
            checkpoint.save(folder, self.step, weights(self.decoder), moments, state)
            checkpoint.prune(folder, self.config.train.keep_checkpoints, newest=self.step)
        self.parallel.wait()
        self.saved_step = self.step
        self.throughput.pause()


# -- what a run records --------------------------------------------------------------------------


class Record:
    """The rows and the result of a run in training, written by rank 0."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        self.config = trainer.config
        folder = trainer.folder
        start = trainer.start
        checkpoint.clear_leftovers(folder / "checkpoints")
        # A step whose evaluation was interrupted gets its row when it is evaluated again.
        self.writer = MetricsWriter(folder, start["step"] - (start["unrecorded"] is not None))
        self.tracker: Any = None
        if (name := self.config.tracker.name) != "none":
            self.tracker = chosen("trackers", name, "tracker.name").Tracker(self.config, folder)
        self.progress = Progress(self.config.name, self.config.train.num_steps)
        # The time at which the run would have begun without interruptions.
        self.began = time.perf_counter() - start["elapsed_s"]

    def elapsed_s(self) -> float:
        """Return the run's training time so far, including earlier starts."""
        return round(time.perf_counter() - self.began, 3)

    def row(self, outcome: Outcome, validation: Mapping[str, float]) -> None:
        """Write a step's row to metrics.jsonl."""
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
        self.writer.write(row)
        if self.tracker is not None:
            self.tracker.row(row)
        self.progress.row(row)

    def end(self, status: str) -> None:
        """Close metrics.jsonl, and write result.json unless the run was stopped and may resume."""
        self.writer.close()
        if status == "stopped":
            return

        config = self.config
        trainer = self.trainer
        last = self.writer.last
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


def environment(
    config: RunConfig, parallel: Parallel, old: Mapping[str, Any], **facts: Any
) -> dict[str, Any]:
    """Return env.json: the machine and software that train this run, and further `facts`.

    Changes since `old`, the run's previous start, are noted in `marks` and `earlier_git`.
    """
    here = {"world_size": parallel.world_size, **machine_facts(parallel.device.type)}
    changed = [
        f"went on with {key} {spelled(here[key])} after {spelled(old[key])}"
        for key in MARKED
        if key in old and old[key] != here[key]
    ]
    if config.init_weights is not None:
        facts["init_from"] = old.get("init_from") or find_origin(config).facts()
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
