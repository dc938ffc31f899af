"""Time our training step beside that of transformers' Trainer: `python scripts/bench.py`.

Both train LLaMA from the same weights on the same batches, each in a process of its own. In every
round each takes some steps while the other waits, so other load of the machine affects both alike.
The ratio is the median over rounds, and is more reliable than either time.
"""

import argparse
import contextlib
import functools
import itertools
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from rope_exp.compose import run_config
from rope_exp.config import RunConfig
from rope_exp.decoder import Decoder, weights
from rope_exp.errors import EXIT_DONE, EXIT_USAGE, ConfigError
from rope_exp.generated import DataSet, open_data
from rope_exp.parallel import Parallel
from rope_exp.settle import resolve
from rope_exp.sources import training_batch
from rope_exp.trainer import TrainingStep
from rope_exp.worker import set_up_process

NEVER = 10**9  # a step that no benchmark reaches
WARM_UP = 3  # steps after the first one


class Gate:
    """Lets the requested number of steps pass, and times them.

    Attributes:
        loss: of the first step.
    """

    def __init__(self, asking: Connection, device: str) -> None:
        self.asking = asking
        self.device = device
        self.loss = float("nan")
        self.asked = 0
        self.left = 0
        self.since = 0.0

    def __call__(self) -> None:
        """Wait here before every step; end the process when no more are requested."""
        if self.left == 0:
            if self.asked:
                if self.device == "cuda":
                    torch.cuda.synchronize()
                self.asking.send(((time.perf_counter() - self.since) / self.asked, self.loss))
            try:
                self.asked = self.left = self.asking.recv()
            except EOFError:
                # This leaves any loop that called the gate.
                os._exit(0)
            self.since = time.perf_counter()
        self.left -= 1


def ours(config: RunConfig, gate: Gate) -> None:
    """Take the steps of a run."""
    set_up_process(config)
    data, decoder = _beginning(config)
    if config.train.compile:
        decoder.compile_parts()
    parallel = Parallel(config.launch.device, config.train.precision, 1)
    step = TrainingStep(config, decoder, data, parallel, should_stop=lambda: False)

    before = None
    for number in itertools.count(1):
        gate()
        started = step(number)
        assert started is not None
        if before is None:
            gate.loss = started().loss
        else:
            # One step late, as a run on a GPU reads it.
            before()
        before = started


def trainer(config: RunConfig, gate: Gate) -> None:
    """Take the steps of transformers' Trainer and LlamaForCausalLM."""
    import transformers

    class AtGate(transformers.TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.log_history:
                gate.loss = state.log_history[0]["loss"]
            gate()

    data, decoder = _beginning(config)
    shape = transformers.LlamaConfig(
        vocab_size=data.vocab_size,
        rope_parameters={"rope_type": "default", "rope_theta": config.pe.base},
        use_cache=False,
        **asdict(config.model),
    )
    model = transformers.LlamaForCausalLM(shape)
    model.load_state_dict(weights(decoder))

    train = config.train
    rows_at_once = train.micro_batch_size or train.global_batch_size
    on_gpu = config.launch.device == "cuda"
    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(
            output_dir=folder,
            use_cpu=not on_gpu,
            bf16=train.precision == "bf16",
            torch_compile=bool(train.compile),
            # torch_compile would switch it on otherwise.
            tf32=False if on_gpu else None,
            per_device_train_batch_size=rows_at_once,
            gradient_accumulation_steps=train.global_batch_size // rows_at_once,
            max_steps=NEVER,
            train_sampling_strategy="sequential",
            optim="adamw_torch_fused",
            weight_decay=config.optim.weight_decay,
            max_grad_norm=config.optim.grad_clip,
            logging_strategy="no",
            logging_first_step=True,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            remove_unused_columns=False,
        )
        rows = Rows(config, data)
        timed = transformers.Trainer(model, arguments, train_dataset=rows, callbacks=[AtGate()])
        timed.remove_callback(transformers.PrinterCallback)
        timed.train()


class Rows(Dataset[dict[str, Tensor]]):
    """The rows of a run's batches, in their order."""

    def __init__(self, config: RunConfig, data: DataSet) -> None:
        self.num_rows = config.train.global_batch_size
        self.batch = functools.lru_cache(1)(functools.partial(training_batch, config, data))

    def __len__(self) -> int:
        return NEVER * self.num_rows

    def __getitem__(self, number: int) -> dict[str, Tensor]:
        step, row = divmod(number, self.num_rows)
        batch = self.batch(step + 1)
        ids_T, target_T = (torch.as_tensor(each[row]) for each in (batch.ids_BT, batch.target_BP))
        # The Trainer counts `labels`; the model predicts `shift_labels`.
        return {"input_ids": ids_T, "labels": target_T, "shift_labels": target_T}


def _beginning(config: RunConfig) -> tuple[DataSet, Decoder]:
    """Return the data of a run, and its model with its first weights."""
    data = open_data(config.data, config.tokenizer, seq_len=config.train.seq_len)
    decoder = Decoder(config.architecture(data.vocab_size))
    decoder.initialise(config.seed)
    return data, decoder


ARMS: dict[str, Callable[[RunConfig, Gate], None]] = {"rope_exp": ours, "Trainer": trainer}


def times(config: RunConfig, rounds: int, steps: int) -> tuple[dict[str, float], dict[str, Any]]:
    """Let both take steps in turn.

    Returns:
        The loss of each one's first step; and the mean seconds of its steps in each round.
    Raises:
        RuntimeError: one of them failed; its error was printed.
    """
    first_loss: dict[str, float] = {}
    step_s: dict[str, list[float]] = {arm: [] for arm in ARMS}
    with contextlib.ExitStack() as stack:
        spawn = multiprocessing.get_context("spawn")
        asked = {}
        for arm in ARMS:
            asked[arm], asking = spawn.Pipe()
            stack.enter_context(contextlib.closing(asked[arm]))
            gate = Gate(asking, config.launch.device)
            process = spawn.Process(target=ARMS[arm], args=(config, gate), daemon=True)
            process.start()
            stack.callback(process.join)
            stack.callback(process.terminate)
            asking.close()

        def take(arm: str, count: int) -> Any:
            try:
                asked[arm].send(count)
                return asked[arm].recv()
            except (EOFError, OSError):
                raise RuntimeError(f"{arm} failed") from None

        for arm in ARMS:
            _, first_loss[arm] = take(arm, 1)
            take(arm, WARM_UP)
        order = list(ARMS)
        for _ in range(rounds):
            for arm in order:
                step_s[arm].append(take(arm, steps)[0])
            # Neither always follows the other.
            order.reverse()
    return first_loss, step_s


def main(words: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    add = parser.add_argument
    add("--rounds", type=int, default=12, help="(%(default)s)")
    add("--steps", type=int, default=10, help="of each in a round (%(default)s)")
    add("overrides", nargs="*", metavar="KEY=VALUE", help="of the run, such as model=10m")
    asked = parser.parse_args(words)
    try:
        # So many steps pay to compile, wherever there is a compiler.
        config = resolve(run_config(["pe=qk_rope", *asked.overrides, f"train.num_steps={NEVER}"]))
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_USAGE

    # The Trainer would use all GPUs, with a batch for each.
    gpus = os.environ.get("CUDA_VISIBLE_DEVICES", "0")
    os.environ["CUDA_VISIBLE_DEVICES"] = gpus.partition(",")[0]
    # As for a run: without it, a busy machine would slow either down tenfold and more.
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    first_loss, step_s = times(config, asked.rounds, asked.steps)

    for arm, loss in first_loss.items():
        median = statistics.median(step_s[arm])
        rate = config.train.tokens_per_step / median
        print(f"{arm}: {1e3 * median:.1f} ms a step, {rate:,.0f} tokens/s, first loss {loss:.4f}")
    ratios = [b / a for a, b in zip(step_s["rope_exp"], step_s["Trainer"], strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
    print(f"Trainer: {middle:.2f} times as slow (quartiles {low:.2f}, {high:.2f})")
    return EXIT_DONE


if __name__ == "__main__":
    sys.exit(main())
