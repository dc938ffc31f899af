"""The loop: train_step, evaluate, fit.

Everything that decides a number is a pure function of the step (batch, learning rate) or stands in the checkpoint, so
resume is an integer. The step never waits for the accelerator: its outcome (loss, gradient norm, first bad step) is
read one step late on a GPU and at once on a CPU. An update whose loss or gradient is not finite is skipped on the
device, as is every later one, so reading late cannot let a bad update through. Between micro-batches, in training and
in evaluation, the processes agree on whether any was asked to stop: all save the same step, and leave.
"""

import contextlib
import gc
import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from torch import Tensor, nn

from rope_exp.config import costs as flops
from rope_exp.config.run import RunConfig
from rope_exp.config.schema import NonNegative, OrderSha256, Sha256
from rope_exp.data.batches import Batches, chain_sha256, validation_ids
from rope_exp.data.meta import Prepared
from rope_exp.model.decoder import Decoder, weights, weights_sha256
from rope_exp.run import checkpoint
from rope_exp.run.folder import MARK_FIELDS, RESULT, MetricsWriter, check_fields
from rope_exp.run.tracker import mirrored
from rope_exp.system.console import Progress
from rope_exp.system.errors import CheckpointError
from rope_exp.system.files import write_json
from rope_exp.system.signals import StopSignal
from rope_exp.training.optim import (
    build_optimizer,
    expected_optimizer_tensors,
    learning_rate,
    load_optimizer_tensors,
    optimizer_tensors,
    set_learning_rate,
)
from rope_exp.training.throughput import Throughput, gpu_peak_flops_per_s

# state.json, beside the step.
STATE_FIELDS: dict[str, Any] = {
    "config_sha256": Sha256,
    "data_sha256": Sha256,
    "init_sha256": Sha256,
    "order_sha256": OrderSha256,
    "elapsed_s": NonNegative,
    "rng": dict,
    "metrics": dict,
    "unrecorded": dict
    | None,  # the outcome of this step, where its row waits for an evaluation that was broken off
}
OUTCOME_FIELDS: dict[str, Any] = {"loss": float, "grad_norm": float}


@dataclass(frozen=True)
class Outcome:
    """One step's, the same on every process."""

    step: int
    loss: float  # mean nats per token of the global batch
    grad_norm: float
    first_bad_step: int  # 0: none so far
    order_before: str  # order_sha256 without this step


@dataclass(frozen=True)
class Started:
    """A step that was started and not read."""

    step: int
    values: Tensor  # [loss, grad_norm, first_bad_step], on the host once `ready`
    ready: torch.cuda.Event | None  # None: it is
    order_before: str


class Trainer:
    """One run on this process, from its newest checkpoint or from the start, to its end or to a stop.

    Raises:
        CheckpointError, RecordError: the folder holds what is no beginning of this run; nothing was changed.
    """

    def __init__(
        self,
        config: RunConfig,
        folder: Path,
        prepared: Prepared,
        accelerator: Accelerator,
        stop: StopSignal,
    ) -> None:
        self.config, self.folder, self.prepared = config, folder, prepared
        self.accelerator, self.stop = accelerator, stop
        train, world = config.train, accelerator.num_processes
        self.share = train.global_batch_size // world
        self.micro = min(train.micro_batch_size or self.share, self.share)
        self.rows = slice(
            accelerator.process_index * self.share, (accelerator.process_index + 1) * self.share
        )
        self.tokens_per_step = train.global_batch_size * train.seq_len
        self.batches = Batches(
            prepared.train,
            seed=config.order_seed,
            batch_size=train.global_batch_size,
            seq_len=train.seq_len,
        )
        self.validation = validation_ids(prepared.validation, train.eval_sequences, train.seq_len)
        self.throughput = Throughput(
            self.tokens_per_step,
            flops.flops_per_token(config, prepared.vocab_size),
            self._peak_flops_per_s(),
        )
        self.reads_late = (
            accelerator.device.type == "cuda"
        )  # by one step, so that the device is never waited for

        self.decoder = Decoder(config.model, config.pe, prepared.vocab_size)
        self.decoder.initialise(config.seed)
        self.init_sha256 = weights_sha256(weights(self.decoder))
        if train.compile:
            self.decoder.compile_parts()
        self.model: nn.Module = accelerator.prepare_model(self.decoder)
        self.optimizer = build_optimizer(self.decoder.named_parameters(), config.optim)
        self.names = {parameter: name for name, parameter in self.decoder.named_parameters()}

        # Of the host's own kind on every device: to ask must not wait for the accelerator.
        self.hosts = torch.distributed.new_group(backend="gloo") if world > 1 else None
        self.first_bad_step = torch.zeros((), dtype=torch.int64, device=accelerator.device)
        self.pending: Started | None = None
        self.step = self.saved_step = 0
        self.order_sha256 = ""
        self.elapsed_before_s = 0.0
        self.mark: Mapping[str, Any] | None = None  # of metrics.jsonl
        self.unrecorded: Outcome | None = None
        self._resume()
        self._agree()

    # -- one step ------------------------------------------------------------------------------------------------

    def train_step(self, step: int) -> Tensor | None:
        """One update from the global batch of `step`; its outcome stays on the device.

        The gradient is of the mean over the global batch's tokens: each micro-batch gives summed nats, divided by the
        global count; wrapped training averages gradients over processes, hence the factor `num_processes`.

        Returns:
            [loss, grad_norm, first_bad_step], or None if asked to stop before the last micro-batch, nothing updated.
        """
        order_before = self.order_sha256
        ids = self._read_batch(step)
        set_learning_rate(self.optimizer, self._rate(step))
        scale = self.accelerator.num_processes / self.tokens_per_step
        loss = torch.zeros((), device=self.accelerator.device)
        micro_batches = torch.split(ids, self.micro)
        for number, micro in enumerate(micro_batches, start=1):
            if self.asked_to_stop():
                self.optimizer.zero_grad(set_to_none=True)
                self.order_sha256 = order_before
                return None
            last = number == len(micro_batches)
            with contextlib.nullcontext() if last else self.accelerator.no_sync(self.model):
                nats = self.model(micro[:, :-1], micro[:, 1:])
                (nats * scale).backward()
            loss += nats.detach()
        loss = self._sum_over_processes(loss / self.tokens_per_step)
        norm = nn.utils.clip_grad_norm_(self.decoder.parameters(), self.config.optim.grad_clip)
        bad = ~(torch.isfinite(loss) & torch.isfinite(norm))
        self.first_bad_step = torch.where(
            bad & (self.first_bad_step == 0), step, self.first_bad_step
        )
        # The fused kernel then leaves weights, moments and its own count of steps as they were.
        self.optimizer.found_inf = (self.first_bad_step > 0).float()  # type: ignore[attr-defined]
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return torch.stack([loss.double(), norm.double(), self.first_bad_step.double()])

    def asked_to_stop(self) -> bool:
        """Whether any process was asked to; all of them ask at the same places of a run, and get the same answer."""
        if self.hosts is None:
            return self.stop.requested
        asked = torch.tensor(float(self.stop.requested))
        torch.distributed.all_reduce(asked, op=torch.distributed.ReduceOp.MAX, group=self.hosts)
        return bool(asked)

    def _read_batch(self, step: int) -> Tensor:
        # The first process reads the whole batch: the order's hash covers every process's tokens.
        if self.accelerator.is_main_process:
            ids = self.batches.ids(step)
            self.order_sha256 = chain_sha256(self.order_sha256, ids)
            ids = ids[self.rows]
        else:
            ids = self.batches.ids(step, self.rows)
        return self._to_device(ids)

    def _to_device(self, ids: np.ndarray) -> Tensor:
        tensor = torch.from_numpy(ids)
        if self.accelerator.device.type == "cuda":
            tensor = tensor.pin_memory()
        return tensor.to(self.accelerator.device, non_blocking=True)

    def _rate(self, step: int) -> float:
        return learning_rate(
            step, self.config.train.num_steps, self.config.optim, self.config.schedule
        )

    def _sum_over_processes(self, tensor: Tensor) -> Tensor:
        return self.accelerator.reduce(tensor, reduction="sum")

    # -- evaluation ----------------------------------------------------------------------------------------------

    @torch.no_grad()
    def evaluate(self) -> float | None:
        """Mean nats per token over the held-out windows, the same for every run of a corpus; None if asked to stop."""
        total = torch.zeros((), dtype=torch.float64, device=self.accelerator.device)
        world = self.accelerator.num_processes
        mine = self.validation[self.accelerator.process_index :: world]
        most = math.ceil(
            len(self.validation) / world
        )  # of any process: all ask to stop equally often
        # Eager: a few batches do not pay for compiling a second graph.
        with torch.compiler.set_stance("force_eager"), self.accelerator.autocast():
            for start in range(0, most, self.micro):
                if self.asked_to_stop():
                    return None
                ids = self._to_device(mine[start : start + self.micro])
                if len(ids):
                    total += self.decoder(ids[:, :-1], ids[:, 1:]).double()
        return float(self._sum_over_processes(total)) / (
            len(self.validation) * self.config.train.seq_len
        )

    # -- the run -------------------------------------------------------------------------------------------------

    def fit(self) -> str:
        """Train to the end.

        Returns:
            "finished", "diverged", or "stopped": a checkpoint stands, and the same command goes on.
        """
        main = self.accelerator.is_main_process
        self.started = time.perf_counter()
        if main:
            checkpoint.clear_leftovers(self.folder / "checkpoints")
            self.passed_over = [
                s for s in checkpoint.list_steps(self.folder / "checkpoints") if s > self.step
            ]
        self.writer = MetricsWriter(self.folder, self.mark) if main else None
        with (
            mirrored(self.config, self.folder) if main else contextlib.nullcontext(),
            _frozen_heap(),
        ):
            with Progress(
                self.config.name, self.config.train.num_steps, self.step, shown=main
            ) as self.progress:
                status = self._run()
            if self.writer is not None:
                self.writer.close()
                if status != "stopped":
                    write_json(self.folder / RESULT, self._result(status, self.writer.last))
        return status

    def _run(self) -> str:
        for outcome in self._outcomes():
            if outcome.first_bad_step:
                self.diverged_step, self.order_sha256 = outcome.first_bad_step, outcome.order_before
                return "diverged"
            due = self._due(outcome.step)
            validation: dict[str, float] = {}
            if due & {"eval", "end"}:
                loss = self.evaluate()
                if loss is None:
                    self._save(outcome)
                    return "stopped"
                if not math.isfinite(loss):  # weights that no loss can be had of
                    self.diverged_step = outcome.step + 1
                    return "diverged"
                validation = {"val/loss": loss}
            if due & {"row", "eval", "end"}:
                self._record(outcome, validation)
            if due & {"save", "end"}:
                self._save()
        if self.step == self.config.train.num_steps:
            return "finished"
        self._save()
        return "stopped"

    def _outcomes(self) -> Iterator[Outcome]:
        """In step order, to the end or to a stop; nothing later has begun when anything is due at a step."""
        if self.unrecorded is not None:
            yield self.unrecorded
        while self.step < self.config.train.num_steps:
            order_before = self.order_sha256
            values = self.train_step(self.step + 1)
            if values is None:
                break
            self.step += 1
            previous, self.pending = self.pending, self._fetch(values, order_before)
            if previous is not None:
                yield self._read(previous)
            if not self.reads_late or self._due(self.step):
                yield from self._drain()
        yield from self._drain()

    def _fetch(self, values: Tensor, order_before: str) -> Started:
        """Have the device copy a step's outcome to the host as soon as it has it, and go on."""
        if values.device.type != "cuda":
            return Started(self.step, values, None, order_before)
        on_host = torch.empty(values.shape, dtype=values.dtype, pin_memory=True).copy_(
            values, non_blocking=True
        )
        ready = torch.cuda.Event()  # type: ignore[no-untyped-call]
        ready.record()
        return Started(self.step, on_host, ready, order_before)

    def _drain(self) -> Iterator[Outcome]:
        if self.pending is not None:
            waiting, self.pending = self.pending, None
            yield self._read(waiting)

    def _read(self, started: Started) -> Outcome:
        if started.ready is not None:
            started.ready.synchronize()
        loss, norm, bad = started.values.tolist()
        self.throughput.step()
        self.progress.update(started.step, loss)
        return Outcome(started.step, loss, norm, int(bad), started.order_before)

    def _due(self, step: int) -> set[str]:
        train = self.config.train
        every = {
            "row": train.log_every,
            "eval": train.eval_every,
            "save": train.save_every,
            "end": train.num_steps,
        }
        return {what for what, period in every.items() if step % period == 0}

    # -- the record ----------------------------------------------------------------------------------------------

    def _record(self, outcome: Outcome, validation: dict[str, float]) -> None:
        if self.writer is not None:
            rate = self.throughput.recent(self.config.train.log_every)
            row = {
                "step": outcome.step,
                "tokens": outcome.step * self.tokens_per_step,
                "train/loss": outcome.loss,
                **validation,
                "lr": self._rate(outcome.step),
                "grad_norm": outcome.grad_norm,
                "tokens_per_s": rate,
                "mfu": self.throughput.mfu(rate),
                "elapsed_s": self._elapsed_s(),
            }
            self.writer.write(row)
            self.progress.row(row)
        if validation:
            self.throughput.pause()

    def _save(self, unrecorded: Outcome | None = None) -> None:
        """Save this step, once, by the first process; the rows up to here are on the disk before it."""
        if self.step == self.saved_step:
            return
        if self.accelerator.is_main_process and self.writer is not None:
            folder = self.folder / "checkpoints"
            state = {
                **self._identity(),
                "order_sha256": self.order_sha256,
                "elapsed_s": self._elapsed_s(),
                "rng": _rng_state(self.accelerator.device),
                "metrics": self.writer.mark(),
                "unrecorded": unrecorded
                and {"loss": unrecorded.loss, "grad_norm": unrecorded.grad_norm},
            }
            checkpoint.save(
                folder,
                self.step,
                weights(self.decoder),
                optimizer_tensors(self.optimizer, self.names),
                state,
            )
            checkpoint.prune(
                folder, self.config.train.keep_checkpoints, self.step, self.passed_over
            )
        self.accelerator.wait_for_everyone()
        self.saved_step = self.step
        self.throughput.pause()

    def _resume(self) -> None:
        saved = checkpoint.load_newest(self.folder / "checkpoints")
        if saved is None:
            return
        where = f"the checkpoint of step {saved.step} in {self.folder}"
        state = self._check_state(saved, where)
        parameters = dict(self.decoder.named_parameters())
        checkpoint.check_tensors(where, saved.model, weights(self.decoder))
        checkpoint.check_tensors(where, saved.optimizer, expected_optimizer_tensors(parameters))
        _set_rng_state(state["rng"], self.accelerator.device, where)
        with torch.no_grad():
            for name, parameter in parameters.items():
                parameter.copy_(saved.model[name])
        load_optimizer_tensors(self.optimizer, self.names, saved.optimizer)
        self.step = self.saved_step = saved.step
        self.order_sha256, self.elapsed_before_s = state["order_sha256"], state["elapsed_s"]
        self.mark = state["metrics"]
        if state["unrecorded"] is not None:
            loss, norm = state["unrecorded"]["loss"], state["unrecorded"]["grad_norm"]
            self.unrecorded = Outcome(saved.step, loss, norm, 0, self.order_sha256)

    def _agree(self) -> None:
        """Refuse processes that begin at different steps or on different data, as hosts with disks of their own would.

        Raises:
            CheckpointError: on every process.
        """
        if self.hosts is None:
            return
        mine = {"step": self.step, "order_sha256": self.order_sha256, **self._identity()}
        all_of_them: list[Any] = [None] * self.accelerator.num_processes
        torch.distributed.all_gather_object(all_of_them, mine, group=self.hosts)
        for number, theirs in enumerate(all_of_them):
            for key, value in all_of_them[0].items():
                if theirs[key] != value:
                    raise CheckpointError(
                        f"process {number} begins at {key}={theirs[key]!s:.12} and process 0 at {value!s:.12}; "
                        f"all of them must see the same {self.folder} and the same data"
                    )

    def _check_state(self, saved: checkpoint.Checkpoint, where: str) -> dict[str, Any]:
        """Refuse a checkpoint of another config, corpus or beginning, or one whose state is not all there."""
        path, state = checkpoint.state_file(self.folder / "checkpoints", saved.step), saved.state
        check_fields(path, state, STATE_FIELDS)
        check_fields(path, state["metrics"], MARK_FIELDS)
        if state["unrecorded"] is not None:
            check_fields(path, state["unrecorded"], OUTCOME_FIELDS)
        for key, value in self._identity().items():
            if state[key] != value:
                raise CheckpointError(
                    f"{where} is of another run: its {key} is {state[key]!s:.12} and this run's {value:.12}; "
                    "restore what it was trained on, or use run.fresh=true"
                )
        return state

    def _identity(self) -> dict[str, str]:
        return {
            "config_sha256": self.config.config_sha256,
            "data_sha256": self.prepared.data_sha256,
            "init_sha256": self.init_sha256,
        }

    def _elapsed_s(self) -> float:
        return round(self.elapsed_before_s + time.perf_counter() - self.started, 3)

    def _peak_flops_per_s(self) -> float | None:
        device = self.accelerator.device
        if device.type != "cuda":
            return None
        peak = gpu_peak_flops_per_s(
            torch.cuda.get_device_name(device), self.config.train.peak_tflops
        )
        return peak and peak * self.accelerator.num_processes

    def _result(self, status: str, last: Mapping[str, Any]) -> dict[str, Any]:
        config = self.config
        rate = self.throughput.overall() or last.get("tokens_per_s")
        finished = status == "finished"
        steps = config.train.num_steps if finished else self.diverged_step - 1
        return {
            "status": status,
            "pe": config.pe.label,
            "rotate": list(config.pe.rotate),
            "seed": config.seed,
            "params": sum(parameter.numel() for parameter in self.decoder.parameters()),
            "tokens": steps * self.tokens_per_step,
            "steps": steps,
            "val/loss": last["val/loss"] if finished else None,
            "train/loss_last": last.get("train/loss"),
            "init_sha256": self.init_sha256,
            "data_sha256": self.prepared.data_sha256,
            "order_sha256": self.order_sha256,
            "config_sha256": config.config_sha256,
            "group_sha256": config.group_sha256,
            "tokens_per_s": rate,
            "mfu": self.throughput.mfu(rate),
            "wall_s": self._elapsed_s(),
            **({} if finished else {"diverged_step": self.diverged_step}),
        }


@contextlib.contextmanager
def _frozen_heap() -> Iterator[None]:
    """Python's collector leaves alone what stands now: to look at every object of the libraries costs a step or two."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _rng_state(device: torch.device) -> dict[str, str]:
    """Of torch's generators, in hex. Training draws no number after initialisation; whoever adds that is covered."""
    states = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    return {name: state.numpy().tobytes().hex() for name, state in states.items()}


def _set_rng_state(states: Mapping[str, str], device: torch.device, where: str) -> None:
    try:
        tensors = {
            name: torch.frombuffer(bytearray.fromhex(states[name]), dtype=torch.uint8)
            for name in states
        }
        torch.set_rng_state(tensors["cpu"])
        if device.type == "cuda":
            torch.cuda.set_rng_state(tensors["cuda"], device)
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise CheckpointError(
            f"{where} holds no state of torch's random numbers for {device.type}; restore it, or use run.fresh=true"
        ) from error
