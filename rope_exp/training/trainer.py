"""The training loop: step, log a row, evaluate, save.

On a GPU, a step's outcome is read one step late, so that the host waits for the device only before
it evaluates or saves; on a CPU, at once. Before each micro-batch of training and evaluation, or
before a step that is one graph, the ranks agree on whether any was asked to stop. Then all save the
same step and leave.
"""

import math
from collections.abc import Iterator
from pathlib import Path

import torch

from rope_exp.config.run import RunConfig
from rope_exp.config.sections import TrainConfig
from rope_exp.data.generated import DataSet
from rope_exp.data.sources import held_out_rows
from rope_exp.evaluation.answers import make_questions
from rope_exp.evaluation.held_out import held_out_loss
from rope_exp.evaluation.inputs import on_device
from rope_exp.evaluation.values import Probes
from rope_exp.model.attention.kernel import ChosenBackends
from rope_exp.model.decoder import Decoder
from rope_exp.plan.costs import flops_per_token
from rope_exp.run.folder import PROBES
from rope_exp.system.files import write_json
from rope_exp.system.signals import StopSignal
from rope_exp.training.beginning import begin
from rope_exp.training.optim import crossings
from rope_exp.training.parallel import Parallel
from rope_exp.training.record import Record
from rope_exp.training.resume import Checkpoints, Start, agree
from rope_exp.training.step import Outcome, Started, TrainingStep
from rope_exp.training.throughput import Throughput, peak_flops_per_s


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
        self.checkpoints = Checkpoints(
            folder / "checkpoints",
            self.identity,
            self.decoder,
            self.train_step.optimizer,
        )
        self.start = self.checkpoints.load()
        self.step = self.start["step"]
        self.saved_step = self.step
        self.train_step.order_sha256 = self.start["order_sha256"]
        mine = {"step": self.step, "order_sha256": self.start["order_sha256"], **self.identity}
        agree(parallel.gather(mine), folder)
        if self.step < train.num_steps:
            self.train_step.settle(self.step + 1)

    def train(self) -> str:
        """Train to the end or to a stop.

        Returns:
            "finished", "diverged", or "stopped": the last step is saved, and the same command
            resumes from it.
        """
        record = Record(
            self.config, self.folder, self.start, self.throughput, self.parallel.is_main
        )
        with record:
            status = self._loop(record)
            if status == "finished" and self.config.train.probes:
                status = self._ask_probes()
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

    def _ask_probes(self) -> str:
        """Write probes.json on rank 0, and return the run's status."""
        answers: Probes | None = {}
        if self.parallel.is_main:
            questions = make_questions(
                self.decoder,
                self.data,
                self.config,
                self.rows_at_once,
                should_stop=lambda: self.stop.requested,
                crossings=crossings(self.train_step.optimizer, self.decoder),
            )
            with self.parallel.autocast():
                answers = questions.ask(self.config.train.probes)
            if answers is not None:
                write_json(self.folder / PROBES, answers)

        # The other ranks wait here until rank 0 has its answers or was asked to stop.
        return "stopped" if self.parallel.any(answers is None) else "finished"

    def _loop(self, record: Record) -> str:
        for outcome in self._outcomes():
            record.step(outcome)
            if outcome.first_bad_step:
                # The weights are still those before the bad step, even if a later one was started.
                self.step = outcome.first_bad_step - 1
                self.train_step.order_sha256 = outcome.order_before
                return "diverged"
            due = _due(self.config.train, outcome.step)

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

            if due & {"row", "eval", "end"}:
                record.row(outcome, validation)
            # Do not time the step after an evaluation, nor the step in which a stage compiles.
            if validation or "stage" in due:
                self.throughput.pause()

            if due & {"save", "end"}:
                self._save(record)

        if self.step == self.config.train.num_steps:
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

        unread: list[Started] = []
        while self.step < self.config.train.num_steps:
            started = self.train_step(self.step + 1)
            if started is None:
                break
            self.step += 1
            unread.append(started)

            reads_late = self.reads_late and _due(self.config.train, self.step) <= {"row"}
            num_left = 1 if reads_late else 0
            while len(unread) > num_left:
                yield unread.pop(0).read()

        for started in unread:
            yield started.read()

    def _save(self, record: Record, unrecorded: tuple[float, float] | None = None) -> None:
        """Save this step once, on rank 0, after the rows up to it are on the disk."""
        if self.step == self.saved_step:
            return

        if record.writer is not None:
            record.writer.sync()
            start = Start(
                step=self.step,
                order_sha256=self.train_step.order_sha256,
                elapsed_s=record.elapsed_s(),
                unrecorded=unrecorded,
            )
            self.checkpoints.save(start, self.config.train.keep_checkpoints)

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
