"""Estimates of a config's costs: parameters, operations a token, memory, disk and time."""

from collections.abc import Sequence
from datetime import timedelta

from rope_exp.config import RunConfig
from rope_exp.costs import (
    PEAK_TFLOPS,
    attention_flops_per_token,
    checkpoint_bytes,
    kept,
    memory_bytes,
    num_parameters,
    run_flops,
)
from rope_exp.errors import ConfigError

ASSUMED_MFU = 0.4
# Below this many parameters, a step on a GPU takes about the launch time of its kernels, whatever
# their arithmetic, so a share of the peak predicts nothing.
LEAST_ESTIMATED = 100_000_000
SHOWN = ("A100", "H100", "H200")
GIB = 2**30


def cost_lines(config: RunConfig) -> list[str]:
    """Return lines that describe a resolved config's costs."""
    model = config.model
    train = config.train
    vocab_size = vocabulary(config)
    architecture = config.architecture(vocab_size)
    params = num_parameters(architecture)
    total = run_flops(config, vocab_size)
    tokens = train.num_tokens
    widths = " and ".join(map(str, dict.fromkeys(config.attn.widths(model))))
    steps = [
        f"{stage.num_steps:,} steps of {stage.batch_size} x {stage.seq_len}"
        for stage in train.staged
    ]
    in_attention = sum(
        stage.num_tokens * attention_flops_per_token(config, stage.seq_len)
        for stage in train.staged
    )
    cache = ", both ways"
    if config.pe.code is not None:
        cache = f"; what pe.code={config.pe.code} caches is not counted"
    elif config.causal:
        a_token, at_all = kept(config.attn, config.model, config.pe)
        cache = (
            f"; a layer caches {a_token or 0:,} numbers a token, and {at_all:,} that do not grow"
        )

    return [
        f"run          {config.pe.label} {model.name} on {config.data.name}, group {config.group}",
        f"model        {params:,} parameters: {model.num_hidden_layers} layers of "
        f"{model.hidden_size}, {model.num_attention_heads} heads of {widths}, "
        f"vocabulary {architecture.vocab_size:,}",
        f"attention    {config.attn.label}{cache}",
        f"tokens       {tokens:,} in {', then '.join(steps)}, {tokens / params:.1f} a parameter",
        f"operations   {total / tokens:.3e} a token, {in_attention / tokens:.3e} of them in "
        f"attention, {total:.3e} in all",
        f"memory       about {memory_bytes(config, vocab_size) / GIB:.1f} GiB a process in "
        f"{train.precision}",
        f"disk         {checkpoint_bytes(config, vocab_size) / GIB:.2f} GiB a checkpoint, "
        f"{train.keep_checkpoints} kept and one more while saving",
        *_times([config]),
    ]


def sweep_lines(configs: Sequence[RunConfig]) -> list[str]:
    """Return lines that describe the total cost of a sweep."""
    total = sum(run_flops(config, vocabulary(config)) for config in configs)
    tokens = sum(config.train.num_tokens for config in configs)
    return [
        f"sweep        {len(configs)} runs, of which the above is the first: {tokens:,} tokens, "
        f"{total:.3e} operations",
        *_times(configs),
    ]


def vocabulary(config: RunConfig) -> int:
    """Return the vocabulary's size, unless only a pretrained tokenizer knows it."""
    if config.known_vocab_size is None:
        reason = "its vocabulary is known once data are prepared"
        raise ConfigError("tokenizer", "pretrained", reason)
    return config.known_vocab_size


def _times(configs: Sequence[RunConfig]) -> list[str]:
    """Return a line with the estimated time of all runs for each card, unless a model is small."""
    total = sum(run_flops(config, vocabulary(config)) for config in configs)
    smallest = min(num_parameters(config.architecture(vocabulary(config))) for config in configs)
    lines = []
    for card in SHOWN if smallest >= LEAST_ESTIMATED else ():
        time = timedelta(seconds=round(total / (PEAK_TFLOPS[card] * 1e12 * ASSUMED_MFU)))
        lines.append(f"time         {time} on one {card} at an assumed {ASSUMED_MFU:.0%} MFU")
    return lines
