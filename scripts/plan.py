"""What a config costs before it runs: `python scripts/plan.py model=1b data=fineweb_edu [...]`.

Prints parameters, operations a token, memory, disk and time. Times are estimates: at a stated share of a card's dense
bf16 peak; on a CPU at the rate of a float32 matrix product, measured now; and at the rate that a run of this group
measured, where one is done.
"""

import statistics
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from rope_exp.config.compose import run_config
from rope_exp.config.costs import (
    PEAK_TFLOPS,
    attention_flops_per_token,
    checkpoint_bytes,
    flops_per_token,
    matmul_flops_per_token,
    memory_bytes,
    num_parameters,
)
from rope_exp.config.resolve import settle
from rope_exp.config.run import DEFAULT_OUTPUT, RunConfig
from rope_exp.run.folder import read_result
from rope_exp.system.errors import ConfigError

ASSUMED_MFU = 0.4
CARDS = ("A100", "H100", "H200")


def main(overrides: list[str]) -> int:
    """Print the plan of one config."""
    if {"-h", "--help"} & set(overrides):
        print(__doc__)
        return 0
    try:
        config = settle(run_config(overrides))
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    vocab_size = config.tokenizer.known_vocab_size
    if vocab_size is None:
        print(
            "error: tokenizer=pretrained: its vocabulary is known once data are prepared",
            file=sys.stderr,
        )
        return 2
    for line in plan(config, vocab_size):
        print(line)
    return 0


def plan(config: RunConfig, vocab_size: int) -> list[str]:
    """The lines to print."""
    model, train = config.model, config.train
    assert isinstance(config.launch.num_processes, int)
    params = num_parameters(config.architecture(vocab_size))
    tokens = train.num_steps * train.global_batch_size * train.seq_len
    per_token = flops_per_token(config, vocab_size)
    lines = [
        f"run          {config.pe.name} {model.name} on {config.data.name}, group {config.group}",
        f"model        {params:,} parameters: {model.num_hidden_layers} layers of {model.hidden_size}, "
        f"{model.num_attention_heads} heads of {model.head_dim}, vocabulary {vocab_size:,}",
        f"tokens       {tokens:,} in {train.num_steps:,} steps of {train.global_batch_size} x {train.seq_len}, "
        f"{tokens / params:.1f} a parameter",
        f"operations   {per_token:.3e} a token ({matmul_flops_per_token(config.architecture(vocab_size)):.3e} in weights, "
        f"{attention_flops_per_token(model, train.seq_len):.3e} in causal attention), {per_token * tokens:.3e} in all",
        f"memory       about {memory_bytes(config, vocab_size, config.launch.num_processes) / 2**30:.1f} GiB a process "
        f"({train.precision}, micro-batch of {train.micro_batch_size or 'its whole share'})",
        f"disk         {checkpoint_bytes(config, vocab_size) / 2**30:.2f} GiB a checkpoint, "
        f"{train.keep_checkpoints} kept and one more while saving",
    ]
    total = per_token * tokens
    if config.launch.device == "cpu":
        rate = matmul_flops_per_s()
        lines.append(
            f"time         {duration(total / rate)} here, if training keeps the {rate / 1e9:,.0f} GFLOP/s of a product"
        )
    for card in CARDS:
        seconds = total / (PEAK_TFLOPS[card] * 1e12 * ASSUMED_MFU)
        lines.append(
            f"time         {duration(seconds)} on one {card} at an assumed {ASSUMED_MFU:.0%} MFU"
        )
    measured = measured_rate(config)
    if measured:
        lines.append(
            f"time         {duration(tokens / measured)} at the {measured:,.0f} tokens/s measured in this group"
        )
    return lines


def matmul_flops_per_s() -> float:
    """What this CPU makes of a float32 product of 2048 x 2048 matrices: the median of five, in FLOP/s."""
    a = np.ones((2048, 2048), dtype=np.float32)
    seconds = []
    for _ in range(6):
        started = time.perf_counter()
        np.matmul(a, a)
        seconds.append(time.perf_counter() - started)
    return 2 * 2048**3 / statistics.median(seconds[1:])


def measured_rate(config: RunConfig) -> float | None:
    """Tokens per second, the median over the finished runs of this config's group; None without one."""
    folders = sorted((DEFAULT_OUTPUT / config.group).glob("*/seed*"))
    rates = [
        result["tokens_per_s"]
        for folder in folders
        if (result := read_result(folder)) and result["tokens_per_s"]
    ]
    return statistics.median(rates) if rates else None


def duration(seconds: float) -> str:
    """Seconds in the unit that a person would use."""
    for unit, length in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:,.1f} {unit}"
    return f"{seconds:,.1f} seconds"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
