"""What a config costs before it runs: `python scripts/plan.py model=1b data=fineweb_edu [...]`.

Prints parameters, operations a token, memory, disk and time. Times are estimates: at a stated share of a card's dense
bf16 peak, and, where a run of this group is done, at the rate that it measured.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from rope_exp.compose import run_config
from rope_exp.config import DEFAULT_OUTPUT, RunConfig
from rope_exp.flops import (
    PEAK_TFLOPS,
    attention_flops_per_token,
    checkpoint_bytes,
    flops_per_token,
    matmul_flops_per_token,
    memory_bytes,
    num_parameters,
)
from rope_exp.machine import settle
from rope_exp.record import read_result
from rope_exp.schema import ConfigError

ASSUMED_MFU = 0.4
CARDS = ("A100", "H100", "H200")


def main(overrides: list[str]) -> int:
    """Print the plan of one config."""
    try:
        config = settle(run_config(overrides))
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    vocab_size = config.tokenizer.vocab_size or (257 if config.tokenizer.kind == "bytes" else None)
    if vocab_size is None:
        print("error: tokenizer=pretrained: its vocabulary is known once data are prepared", file=sys.stderr)
        return 2
    for line in plan(config, vocab_size):
        print(line)
    return 0


def plan(config: RunConfig, vocab_size: int) -> list[str]:
    """The lines to print."""
    model, train = config.model, config.train
    assert isinstance(config.launch.num_processes, int)
    params = num_parameters(model, config.pe, vocab_size)
    tokens = train.num_steps * train.global_batch_size * train.seq_len
    per_token = flops_per_token(config, vocab_size)
    lines = [
        f"run          {config.pe.name} {model.name} on {config.data.name}, group {config.group}",
        f"model        {params:,} parameters: {model.num_hidden_layers} layers of {model.hidden_size}, "
        f"{model.num_attention_heads} heads of {model.head_dim}, vocabulary {vocab_size:,}",
        f"tokens       {tokens:,} in {train.num_steps:,} steps of {train.global_batch_size} x {train.seq_len}, "
        f"{tokens / params:.1f} a parameter",
        f"operations   {per_token:.3e} a token ({matmul_flops_per_token(model, vocab_size):.3e} in weights, "
        f"{attention_flops_per_token(model, train.seq_len):.3e} in causal attention), {per_token * tokens:.3e} in all",
        f"memory       about {memory_bytes(config, vocab_size, config.launch.num_processes) / 2**30:.1f} GiB a process "
        f"({train.precision}, micro-batch of {train.micro_batch_size or 'its whole share'})",
        f"disk         {checkpoint_bytes(params) / 2**30:.2f} GiB a checkpoint, {train.keep_checkpoints} kept",
    ]
    for card in CARDS:
        hours = per_token * tokens / (PEAK_TFLOPS[card] * 1e12 * ASSUMED_MFU) / 3600
        lines.append(f"time         {hours:,.2f} hours on one {card} at an assumed {ASSUMED_MFU:.0%} MFU")
    for folder in sorted((DEFAULT_OUTPUT / config.group).glob("*/seed*")):
        result = read_result(folder)
        if result and result["tokens_per_s"]:
            lines.append(
                f"time         {tokens / result['tokens_per_s'] / 60:,.1f} minutes at the "
                f"{result['tokens_per_s']:,.0f} tokens/s that {folder} measured"
            )
            break
    return lines


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
