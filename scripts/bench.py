"""Time our training step beside that of transformers' Trainer: `python scripts/bench.py`.

It prints the machine's rates first. Then our step takes turns with the Trainer's, eager, and, where
ours is compiled, compiled too.

Both train LLaMA from the same weights on the same batches. In every round each takes some steps
while the other waits, so other load of the machine affects both alike. The ratio is the median over
rounds, and is more reliable than either time.
"""

import argparse
import copy
import functools
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
import transformers
from gpu_tune import NEVER, WARM_UP, Loop
from torch import Tensor
from torch.utils.data import Dataset

from rope_exp.batches import training_batch
from rope_exp.compose import resolve, run_config
from rope_exp.config import RunConfig
from rope_exp.corpus import DataSet
from rope_exp.costs import flops_per_token
from rope_exp.decoder import Decoder, weights
from rope_exp.errors import EXIT_DONE, run_command
from rope_exp.machine import machine_environment
from rope_exp.prepare import open_data
from rope_exp.worker import set_up_process

RATE_SIZE = 2048  # of the square matrices whose product is timed
COPIED_BYTES = 2**28  # more than caches hold
RATE_SECONDS = 1.0


class Turns(transformers.TrainerCallback):
    """Lets our loop take its turn after every few steps of the Trainer.

    Attributes:
        step_s: the mean seconds of a step in each round, ours and the Trainer's.
    """

    def __init__(self, loop: Loop, num_steps: int) -> None:
        self.loop = loop
        self.num_steps = num_steps
        self.step_s: tuple[list[float], list[float]] = ([], [])
        self.began = 0.0

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """After the warm-up, and after each round, note its time and begin the next round."""
        rounds, rest = divmod(state.global_step - WARM_UP, self.num_steps)
        if rounds < 0 or rest:
            return
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        if rounds:
            self.step_s[1].append((time.perf_counter() - self.began) / self.num_steps)
        if state.global_step < state.max_steps:
            self.step_s[0].append(self.loop.take(self.num_steps)[1])
        self.began = time.perf_counter()


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
        ids_T, target_T = (torch.as_tensor(ids[row]) for ids in (batch.ids_BT, batch.target_BP))
        # The Trainer counts `labels`; the model predicts `shift_labels`.
        return {"input_ids": ids_T, "labels": target_T, "shift_labels": target_T}


def bench(config: RunConfig, rounds: int, steps: int) -> int:
    """Print the machine's rates, and the times of our step and of the Trainer's, in turns.

    Args:
        config: of the run, resolved. The Trainer gets the same weights and batches.
        rounds: how often both take their turn.
        steps: of each in a round.
    Returns:
        The exit code.
    """
    set_up_process(config)
    data = open_data(config.data, config.tokenizer, seq_len=config.train.seq_len)
    print_machine(config, data.vocab_size)
    decoder = Decoder(config.architecture(data.vocab_size))
    decoder.initialise(config.seed)
    first_weights = copy.deepcopy(weights(decoder))
    loop = Loop(config, decoder, data)
    [our_loss, *_], _ = loop.take(WARM_UP)

    shape = transformers.LlamaConfig(
        vocab_size=data.vocab_size,
        rope_parameters={"rope_type": "default", "rope_theta": config.pe.base},
        use_cache=False,
        **asdict(config.model),
    )
    kinds = (False, True) if config.train.compile else (False,)
    for compiled in kinds:
        model = transformers.LlamaForCausalLM(shape)
        model.load_state_dict(first_weights)
        turns = Turns(loop, steps)
        with tempfile.TemporaryDirectory() as folder:
            arguments = trainer_arguments(config, folder, WARM_UP + rounds * steps, compiled)
            rows = Rows(config, data)
            trainer = transformers.Trainer(model, arguments, train_dataset=rows, callbacks=[turns])
            trainer.remove_callback(transformers.PrinterCallback)
            trainer.train()
        losses = (our_loss, trainer.state.log_history[0]["loss"])
        name = f"Trainer, {'compiled' if compiled else 'eager'}"
        print_times(name, losses, turns.step_s, config.train.tokens_per_step)
    return EXIT_DONE


def trainer_arguments(
    config: RunConfig, folder: str, num_steps: int, compiled: bool
) -> transformers.TrainingArguments:
    """Return the arguments by which the Trainer trains as a run does.

    Args:
        config: of the run, resolved.
        folder: an empty one, which the Trainer asks for.
        num_steps: of the training.
        compiled: whether it compiles the model.
    Returns:
        Its arguments.
    """
    train = config.train
    rows_at_once = train.rows_at_once(train.global_batch_size, train.seq_len)
    on_gpu = config.launch.device == "cuda"
    return transformers.TrainingArguments(
        output_dir=folder,
        use_cpu=not on_gpu,
        bf16=train.precision == "bf16",
        torch_compile=compiled,
        # torch_compile would switch it on otherwise.
        tf32=False if on_gpu else None,
        per_device_train_batch_size=rows_at_once,
        gradient_accumulation_steps=train.global_batch_size // rows_at_once,
        max_steps=num_steps,
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


def print_machine(config: RunConfig, vocab_size: int) -> None:
    """Print the rates of large products and of copies here, and the floor that they set to a step.

    Args:
        config: of the run, resolved.
        vocab_size: of its tokenizer.
    """
    device = config.launch.device
    print(f"{machine_environment(device)['device']}, {torch.get_num_threads()} threads")
    step_flops = config.train.tokens_per_step * flops_per_token(config, vocab_size)
    for name, dtype in (("bf16", torch.bfloat16), ("fp32", torch.float32)):
        a_NN = torch.ones(RATE_SIZE, RATE_SIZE, dtype=dtype, device=device)
        flops_per_s = 2 * RATE_SIZE**3 / least_seconds(functools.partial(torch.mm, a_NN, a_NN))
        line = f"products in {name}: {flops_per_s / 1e12:.3f} TFLOP/s"
        if name == config.train.precision:
            line += f", so those of a step take at least {1e3 * step_flops / flops_per_s:.1f} ms"
        print(line)

    source = torch.zeros(COPIED_BYTES, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    rate = 2 * COPIED_BYTES / least_seconds(functools.partial(target.copy_, source))
    print(f"copies: {rate / 1e9:.0f} GB/s, read and written")


def least_seconds(call: Callable[[], Any]) -> float:
    """Return the shortest time that a call takes, of those of a second."""
    times: list[float] = []
    end = time.perf_counter() + RATE_SECONDS
    while not times or time.perf_counter() < end:
        began = time.perf_counter()
        call()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    return min(times)


def print_times(
    name: str,
    losses: tuple[float, float],
    step_s: tuple[list[float], list[float]],
    tokens_per_step: int,
) -> None:
    """Print our times and the Trainer's, and their ratio.

    Args:
        name: of the Trainer.
        losses: of the first step, ours and the Trainer's.
        step_s: the mean seconds of a step in each round, likewise.
        tokens_per_step: of either.
    """
    for who, loss, of_rounds in zip(("rope_exp", name), losses, step_s, strict=True):
        median = statistics.median(of_rounds)
        rate = tokens_per_step / median
        print(f"{who}: {1e3 * median:.1f} ms a step, {rate:,.0f} tokens/s, first loss {loss:.4f}")

    ratios = [theirs / ours for ours, theirs in zip(*step_s, strict=True)]
    low, middle, high = np.quantile(ratios, [0.25, 0.5, 0.75])
    print(f"{name}: {middle:.2f} times as slow (quartiles {low:.2f}, {high:.2f})")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    add = parser.add_argument
    add("--rounds", type=int, default=12, help="(%(default)s)")
    add("--steps", type=int, default=10, help="of each in a round (%(default)s)")
    add("overrides", nargs="*", metavar="KEY=VALUE", help="of the run, such as model=10m")
    args = parser.parse_args(argv)
    if args.rounds < 1 or args.steps < 1:
        parser.error("--rounds and --steps must be at least 1")

    # The Trainer would use all GPUs, with a batch for each.
    gpus = os.environ.get("CUDA_VISIBLE_DEVICES", "0")
    os.environ["CUDA_VISIBLE_DEVICES"] = gpus.partition(",")[0]
    # So many steps pay to compile, wherever there is a compiler.
    overrides = ["pe=qk_rope", *args.overrides, f"train.num_steps={NEVER}"]
    return run_command(lambda: bench(resolve(run_config(overrides)), args.rounds, args.steps))


if __name__ == "__main__":
    sys.exit(main())
