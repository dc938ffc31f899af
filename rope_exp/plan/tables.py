"""Estimates of a config's costs: parameters, operations a token, memory, disk and time.

Times assume a stated share of a card's dense bf16 peak; on a CPU the speed of a float32 matrix
product, measured now; and the speed measured in runs of this group.
"""

import statistics
import timeit
from collections.abc import Sequence
from functools import cache

import numpy as np

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
# Below this many parameters, the time of a step on a GPU is about the launch time of its kernels,
# whatever their arithmetic: several hundred kernels at some microseconds each. A share of the peak
# then predicts nothing: it would give 77 seconds for nine runs of 10M.
LEAST_ESTIMATED = 100_000_000
SHOWN = ("A100", "H100", "H200")
GIB = 2**30
UNITS = {"days": 86400, "hours": 3600, "minutes": 60}


def cost_lines(
    config: RunConfig,
    measured_tokens_per_s: float | None = None,
    num_corpus_tokens: int | None = None,
) -> list[str]:
    """Return lines that describe a config's costs.

    Args:
        config: with every `auto` resolved.
        measured_tokens_per_s: of runs of this config's group, if there are any.
        num_corpus_tokens: of one epoch, if the corpus is prepared.
    Raises:
        ConfigError: the vocabulary's size is known only to a pretrained tokenizer.
    """
    model = config.model
    train = config.train
    vocab_size = vocabulary(config)
    architecture = config.architecture(vocab_size)
    params = num_parameters(architecture)
    total = run_flops(config, vocab_size)
    tokens = train.num_tokens
    epochs = f", {tokens / num_corpus_tokens:.3g} epochs" if num_corpus_tokens else ""
    widths = " and ".join(map(str, dict.fromkeys(config.attn.widths(model))))
    steps = [
        f"{stage.num_steps:,} steps of {stage.batch_size} x {stage.seq_len}"
        for stage in train.staged
    ]
    in_attention = sum(
        stage.num_tokens * attention_flops_per_token(config, stage.seq_len)
        for stage in train.staged
    )

    return [
        f"run          {config.pe.label} {model.name} on {config.data.name}, group {config.group}",
        f"model        {params:,} parameters: {model.num_hidden_layers} layers of "
        f"{model.hidden_size}, {model.num_attention_heads} heads of {widths}, "
        f"vocabulary {architecture.vocab_size:,}",
        f"attention    {config.attn.label}{_kept(config)}",
        f"tokens       {tokens:,} in {', then '.join(steps)}, {tokens / params:.1f} a parameter"
        f"{epochs}",
        f"operations   {total / tokens:.3e} a token, {in_attention / tokens:.3e} of them in "
        f"attention, {total:.3e} in all",
        f"memory       about {memory_bytes(config, vocab_size) / GIB:.1f} GiB a process in "
        f"{train.precision}",
        f"disk         {checkpoint_bytes(config, vocab_size) / GIB:.2f} GiB a checkpoint, "
        f"{train.keep_checkpoints} kept and one more while saving",
        *_times([config], measured_tokens_per_s),
    ]


def sweep_lines(
    configs: Sequence[RunConfig], measured_tokens_per_s: float | None = None
) -> list[str]:
    """Return lines that describe the total cost of a sweep.

    Args:
        configs: with every `auto` resolved.
        measured_tokens_per_s: of runs of their common group, if there are any.
    Raises:
        ConfigError: see cost_lines.
    """
    total = sum(run_flops(config, vocabulary(config)) for config in configs)
    tokens = sum(config.train.num_tokens for config in configs)
    return [
        f"sweep        {len(configs)} runs, of which the above is the first: {tokens:,} tokens, "
        f"{total:.3e} operations; one after another they take",
        *_times(configs, measured_tokens_per_s),
    ]


def vocabulary(config: RunConfig) -> int:
    """Return the vocabulary's size.

    Raises:
        ConfigError: only a pretrained tokenizer knows it.
    """
    if config.known_vocab_size is None:
        raise ConfigError(
            "tokenizer", "pretrained", "its vocabulary is known once data are prepared"
        )
    return config.known_vocab_size


def _times(configs: Sequence[RunConfig], measured_tokens_per_s: float | None) -> list[str]:
    """Return a line with the estimated time of all runs for each assumed or measured speed."""
    total = sum(run_flops(config, vocabulary(config)) for config in configs)
    smallest = min(num_parameters(config.architecture(vocabulary(config))) for config in configs)
    lines = []
    if configs[0].launch.device == "cpu":
        rate = matmul_flops_per_s()
        where = f"here, if training keeps the {rate / 1e9:,.0f} GFLOP/s of a product"
        lines.append(_time(total / rate, where))
    if smallest < LEAST_ESTIMATED:
        lines.append(
            f"time         no estimate below {LEAST_ESTIMATED:,} parameters on a GPU, where "
            "starting kernels takes longer than their arithmetic"
        )
    for card in SHOWN if smallest >= LEAST_ESTIMATED else ():
        rate = PEAK_TFLOPS[card] * 1e12 * ASSUMED_MFU
        lines.append(_time(total / rate, f"on one {card} at an assumed {ASSUMED_MFU:.0%} MFU"))
    if measured_tokens_per_s is not None:
        tokens = sum(config.train.num_tokens for config in configs)
        where = f"at the {measured_tokens_per_s:,.0f} tokens/s measured in this group"
        lines.append(_time(tokens / measured_tokens_per_s, where))
    return lines


@cache
def matmul_flops_per_s() -> float:
    """Return this CPU's FLOP/s in a float32 product of 2048 x 2048, the median of five.

    It is measured once, so that the plans of a run and its sweep use the same speed.
    """
    size = 2048
    matrix = np.ones((size, size), dtype=np.float32)
    # The first product starts the threads.
    seconds = timeit.repeat(lambda: matrix @ matrix, number=1, repeat=6)
    return 2 * size**3 / statistics.median(seconds[1:])


def _time(seconds: float, where: str) -> str:
    """Return one line, in a readable unit."""
    for unit, length in UNITS.items():
        if seconds >= 2 * length:
            return f"time         {seconds / length:,.1f} {unit} {where}"
    if seconds < 1:
        return f"time         less than a second {where}"
    return f"time         {seconds:,.1f} seconds {where}"


def _kept(config: RunConfig) -> str:
    """Describe a layer's cache of earlier tokens in generation, if attention is causal."""
    if not config.causal:
        return ", both ways"
    a_token, at_all = kept(config.attn, config.model, config.pe)
    if a_token is None:
        return f"; what pe.code={config.pe.code} caches is not counted"
    return f"; a layer caches {a_token:,} numbers a token, and {at_all:,} that do not grow"
