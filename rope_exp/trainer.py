"""The training loop of one run on one rank, its rows, and its result."""

import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, NotRequired

import torch
from typing_extensions import TypedDict

from rope_exp import checkpoint
from rope_exp.config import RunConfig, TrainConfig, differing_keys
from rope_exp.costs import flops_per_token
from rope_exp.costs import peak_flops_per_s as listed_peak_flops_per_s
from rope_exp.decoder import Decoder, weights
from rope_exp.errors import CheckpointError, Progress, log
from rope_exp.evaluate import Finished, held_out_loss, on_device
from rope_exp.files import json_sha256, read_json, write_json
from rope_exp.folder import PROBES, RESULT, MetricsWriter, checked
from rope_exp.generated import DataSet
from rope_exp.identity import Natural, NonNegative, OrderSha256, Sha256
from rope_exp.kernels import ChosenBackends
from rope_exp.origin import begin, find_origin
from rope_exp.parallel import Parallel
from rope_exp.provenance import MARKED, machine_facts, spelled
from rope_exp.signals import StopSignal
from rope_exp.sources import held_out_rows
from rope_exp.step import (
    Outcome,
    TrainingStep,
    crossings,
    learning_rate,
    make_state,
    optimizer_tensors,
)
from rope_exp.tracker import Tracker

WARMUP_STEPS = 10  # excluded from a run's speed: compilation, first memory accesses


class Speed(NamedTuple):
    """Speed of some steps; None before any was timed. MFU is None if the peak is unknown."""

    tokens_per_s: float | None
    mfu: float | None


@dataclass
class Throughput:
    """Times steps from the end of one to the end of the next, except the step after a pause.

    Steps of all sequence lengths count equally: medians are over seconds per token and seconds per
    operation.

    Attributes:
        flops_per_token: the numerator of MFU (rope_exp.costs), by sequence length.
        peak_flops_per_s: of all ranks' devices together; None: MFU is None. It becomes None, with
            one warning, once a share above 1 proves it or the count of operations wrong.
    """

    flops_per_token: Mapping[int, int]
    peak_flops_per_s: float | None
    # The seconds per token and per operation of each timed step.
    _timed: list[tuple[float, float]] = field(default_factory=list)
    _last_end: float | None = None

    def step(self, num_tokens: int, seq_len: int) -> None:
        """Record the end of a step, with its tokens over all ranks and its sequence length."""
        now = time.perf_counter()
        if self._last_end is not None:
            per_token = (now - self._last_end) / num_tokens
            self._timed.append((per_token, per_token / self.flops_per_token[seq_len]))
        self._last_end = now

    def pause(self) -> None:
        """Exclude the time until the next step ends."""
        self._last_end = None

    def speed(self, num_steps: int | None = None) -> Speed:
        """Return the median speed of the last timed steps.

        Args:
            num_steps: how many; None: all after warm-up, or all of a shorter run.
        """
        if num_steps is None:
            timed = self._timed[WARMUP_STEPS:] or self._timed
        else:
            timed = self._timed[-num_steps:]
        if not timed:
            return Speed(None, None)

        per_token, per_flop = map(statistics.median, zip(*timed, strict=True))
        mfu = None
        if self.peak_flops_per_s is not None:
            mfu = 1 / per_flop / self.peak_flops_per_s
            if mfu > 1:
                log(
                    f"warning: MFU {mfu:.0%}: the peak of this device (train.peak_tflops) or the "
                    "count of operations is wrong; MFU is null from here on"
                )
                mfu = self.peak_flops_per_s = None
        return Speed(1 / per_token, mfu)


def peak_flops_per_s(device: torch.device, count: int, given_tflops: float | None) -> float | None:
    """Return the dense bf16 peak of a run's devices; None if unknown, and on a CPU.

    Args:
        device: one of `count` identical devices.
        given_tflops: the config's peak of one device; 0: unknown; None: use the table of peaks.
    """
    if device.type != "cuda":
        return None
    peak = listed_peak_flops_per_s(torch.cuda.get_device_name(device))
    if given_tflops is not None:
        peak = given_tflops * 1e12
    return peak * count if peak else None


class Start(TypedDict):
    """The state from which a run begins or resumes.

    Attributes:
        step: the last completed step.
        order_sha256: hash of all batches up to it.
        elapsed_s: the run's training time so far.
        unrecorded: the loss and the gradient norm of this step, if its row waits for an
            evaluation that was interrupted.
    """

    step: Natural
    order_sha256: OrderSha256
    elapsed_s: NonNegative
    unrecorded: tuple[float, float] | None


class State(Start):
    """Contents of state.json: the start, and the hashes that identify the run."""

    config_sha256: Sha256
    data_sha256: Sha256
    init_sha256: Sha256
    # Absent in checkpoints of older versions.
    shared_init_sha256: NotRequired[Sha256]


INITIAL = ("init_sha256", "shared_init_sha256")
BEGINNING = Start(step=0, order_sha256="", elapsed_s=0.0, unrecorded=None)


def agree(beginnings: Sequence[Mapping[str, Any]], folder: Path) -> None:
    """Refuse ranks that begin differently, as happens when hosts do not share a disk.

    Args:
        beginnings: the step and the hashes at which each rank begins, by rank.
    Raises:
        CheckpointError: a rank differs from rank 0; the first is named.
    """
    for rank, theirs in enumerate(beginnings):
        keys = differing_keys(beginnings[0], theirs)
        if keys:
            raise CheckpointError(
                f"process {rank} begins elsewhere than process 0 ({'; '.join(keys)}); all of them "
                f"must see the same {folder} and the same data"
            )


class Record(ExitStack):
    """The rows and the result of a run in training, written by rank 0.

    Args:
        start: the state from which the run begins.
    Raises:
        RecordError: metrics.jsonl is damaged; it is not changed.
    """

    def __init__(
        self, config: RunConfig, folder: Path, start: Start, throughput: Throughput
    ) -> None:
        super().__init__()
        self.config = config
        self.folder = folder
        self.throughput = throughput
        checkpoint.clear_leftovers(folder / "checkpoints")
        # A step whose evaluation was interrupted gets its row when it is evaluated again.
        self.writer = MetricsWriter(folder, start["step"] - (start["unrecorded"] is not None))
        self.tracker = self.enter_context(Tracker(config, folder))
        # The time at which the run would have begun without interruptions.
        self.began = time.perf_counter() - start["elapsed_s"]
        self.progress = Progress(config.name, config.train.num_steps)
        if config.train.compile:
            log(f"{config.name}: compiling")

    def elapsed_s(self) -> float:
        """Return the run's training time so far, including earlier starts."""
        return round(time.perf_counter() - self.began, 3)

    def row(self, outcome: Outcome, validation: Mapping[str, float]) -> None:
        """Write a step's row to metrics.jsonl."""
        train = self.config.train
        speed = self.throughput.speed(train.log_every)
        row = {
            "step": outcome.step,
            "tokens": train.tokens_until(outcome.step),
            "train/loss": outcome.loss,
            **validation,
            "lr": learning_rate(outcome.step, self.config),
            "grad_norm": outcome.grad_norm,
            **speed._asdict(),
            "elapsed_s": self.elapsed_s(),
        }
        self.writer.write(row)
        self.tracker.row(row)
        self.progress.row(row)

    def end(self, status: str, steps: int, facts: Mapping[str, Any]) -> None:
        """Close metrics.jsonl, and write result.json unless the run was stopped and may resume.

        Args:
            status: "finished", "diverged" or "stopped".
            steps: the number of steps that produced the run's weights.
            facts: further entries of result.json.
        """
        self.writer.close()
        if status == "stopped":
            return

        config = self.config
        last = self.writer.last
        finished = status == "finished"
        speed = self.throughput.speed()
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
            **speed._asdict(),
            "wall_s": self.elapsed_s(),
        }
        if not finished:
            result["diverged_step"] = steps + 1
        elif config.train.probes:
            result["probes_sha256"] = json_sha256(read_json(self.folder / PROBES))
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


class Trainer:
    """One run on this rank, from its newest checkpoint or step 0 to its end or a stop.

    Attributes:
        step: the last step made; its outcome may not have been read.

    Raises:
        CheckpointError, RecordError: the folder's checkpoint or the folder of run.init_from is
            damaged or does not belong to this run; nothing on disk was changed.
        ConfigError: the weights or the tokenizer of run.init_from do not fit.
    """

    def __init__(
        self,
        config: RunConfig,
        folder: Path,
        data: DataSet,
        parallel: Parallel,
        stop: StopSignal,
    ) -> None:
        self.config = config
        self.folder = folder
        self.data = data
        self.parallel = parallel
        self.stop = stop
        self.reads_late = parallel.device.type == "cuda"

        # The model, its initial weights, and the training step.
        self.decoder = Decoder(config.architecture(data.vocab_size))
        self.decoder.initialise(config.seed)
        initial = begin(self.decoder, config, folder, data.tokenizer_json, is_main=parallel.is_main)
        self.identity = {
            "config_sha256": config.config_sha256,
            "data_sha256": data.data_sha256,
            **initial,
        }
        self.num_parameters = sum(parameter.numel() for parameter in self.decoder.parameters())
        train = config.train
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

        # The state from which the run begins.
        self.start = self.load()
        self.step = self.start["step"]
        self.saved_step = self.step
        self.train_step.order_sha256 = self.start["order_sha256"]
        mine = {"step": self.step, "order_sha256": self.start["order_sha256"], **self.identity}
        agree(parallel.gather(mine), folder)
        if self.step < train.num_steps:
            self.train_step.settle(self.step + 1)

    def load(self) -> Start:
        """Load the newest checkpoint into the model and the optimizer.

        If only the checkpoints know the initial weights, `identity` gets their hashes.

        Returns:
            The state from which the run resumes, or the start of a new run if there is no
            checkpoint.
        Raises:
            CheckpointError, RecordError: no checkpoint verifies, or it does not belong to this
                run; the weights were not changed.
        """
        saved = checkpoint.load_newest(self.folder / "checkpoints")
        if saved is None:
            return BEGINNING

        where = f"the checkpoint of step {saved.step} in {self.folder}"
        state: Any = checked(f"{where}: state.json", saved.state, State)
        for key, value in self.identity.items():
            if state.get(key, value) != value:
                raise CheckpointError(
                    f"{where} is of another run: its {key} is {state[key]:.12} and this run's "
                    f"{value:.12}; restore what it was trained on, or use run.fresh=true"
                )
        optimizer = self.train_step.optimizer
        make_state(optimizer, self.decoder)
        moments = optimizer_tensors(optimizer, self.decoder)
        differing = sorted(moments.keys() ^ saved.optimizer.keys())
        if differing:
            raise CheckpointError(f"{where} is of another optimizer: {', '.join(differing)}")

        checkpoint.load_weights(where, self.decoder, saved.model)
        for name, moment in moments.items():
            moment.copy_(saved.optimizer[name])
        self.identity.update((key, state[key]) for key in INITIAL if key in state)
        return state

    def train(self) -> str:
        """Train to the end or to a stop.

        Returns:
            "finished", "diverged", or "stopped": the last step is saved, and the same command
            resumes from it.
        """
        if not self.parallel.is_main:
            return self._run(None)
        with Record(self.config, self.folder, self.start, self.throughput) as record:
            status = self._run(record)
            facts = {"params": self.num_parameters, "order_sha256": self.train_step.order_sha256}
            record.end(status, self.step, facts | self.identity)
        return status

    def should_stop(self) -> bool:
        """Return whether any rank was asked to stop; all ranks get the same answer."""
        return self.parallel.any(self.stop.requested)

    def evaluate(self) -> float | None:
        """Return the mean loss over the targets of the held-out rows; None if asked to stop."""
        with self.parallel.autocast():
            return held_out_loss(
                self.decoder,
                self.held_out_rows,
                micro_batch_size=self.rows_at_once,
                device=self.parallel.device,
                rank=self.parallel.rank,
                world_size=self.parallel.world_size,
                should_stop=self.should_stop,
                sum_over_ranks=self.parallel.sum,
            )

    def attention_backends(self) -> list[str]:
        """Return the backends that torch chooses for attention over one row of the run's length.

        There is none for kinds without a softmax, and for those that compute it without torch's
        kernel, as on a CPU.
        """
        row = on_device(self.held_out_rows.rows(slice(0, 1)), self.parallel.device)
        eager = torch.compiler.set_stance("force_eager")
        with eager, self.parallel.autocast(), ChosenBackends() as chosen:
            row.features(self.decoder)
        return sorted(chosen.names)

    def _run(self, record: Record | None) -> str:
        """Train, ask the probes of a run that finished, and return the run's status."""
        status = self._loop(record)
        if status != "finished" or not self.config.train.probes:
            return status

        answers: dict[str, Any] | None = {}
        if self.parallel.is_main:
            finished = Finished(
                self.decoder,
                self.config,
                self.data,
                self.rows_at_once,
                should_stop=lambda: self.stop.requested,
                crossings=crossings(self.train_step.optimizer, self.decoder),
            )
            with self.parallel.autocast():
                answers = finished.ask(self.config.train.probes)
            if answers is not None:
                write_json(self.folder / PROBES, answers)

        # The other ranks wait here until rank 0 has its answers or was asked to stop.
        return "stopped" if self.parallel.any(answers is None) else "finished"

    def _loop(self, record: Record | None) -> str:
        train = self.config.train
        for outcome in self._outcomes():
            stage = train.stage_at(outcome.step)
            self.throughput.step(stage.tokens_per_step, stage.seq_len)
            if outcome.first_bad_step:
                # The weights are still those before the bad step, even if a later one was started.
                self.step = outcome.first_bad_step - 1
                self.train_step.order_sha256 = outcome.order_before
                return "diverged"
            due = _due(train, outcome.step)

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
        yielded: evaluations and checkpoints are of its weights, and where a stage ends, the time of
        the next step is not measured.
        """
        if self.start["unrecorded"] is not None:
            yield Outcome(self.step, *self.start["unrecorded"], 0, self.start["order_sha256"])

        unread: list[Callable[[], Outcome]] = []
        while self.step < self.config.train.num_steps:
            started = self.train_step(self.step + 1)
            if started is None:
                break
            self.step += 1
            unread.append(started)

            reads_late = self.reads_late and _due(self.config.train, self.step) <= {"row"}
            num_left = 1 if reads_late else 0
            while len(unread) > num_left:
                yield unread.pop(0)()

        for read in unread:
            yield read()

    def _save(self, record: Record | None, unrecorded: tuple[float, float] | None = None) -> None:
        """Save this step once, on rank 0, after the rows up to it are on the disk."""
        if self.step == self.saved_step:
            return

        if record is not None:
            record.writer.sync()
            start = Start(
                step=self.step,
                order_sha256=self.train_step.order_sha256,
                elapsed_s=record.elapsed_s(),
                unrecorded=unrecorded,
            )
            folder = self.folder / "checkpoints"
            moments = optimizer_tensors(self.train_step.optimizer, self.decoder)
            state = {**start, **self.identity}
            checkpoint.save(folder, self.step, weights(self.decoder), moments, state)
            checkpoint.prune(folder, self.config.train.keep_checkpoints, newest=self.step)

        self.parallel.wait()
        self.saved_step = self.step
        self.throughput.pause()


def _due(train: TrainConfig, step: int) -> set[str]:
    """Return the actions due after a step: row, eval, save, end, or stage (another begins)."""
    every = {
        "row": train.log_every,
        "eval": train.eval_every,
        "save": train.save_every,
        "end": train.num_steps,
    }
    due = {what for what, period in every.items() if step % period == 0}
    return due | {"stage"} if step == train.stage_at(step).last_step else due
