"""Estimates of a config's costs, and the MLP that gives a model a number of parameters."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

from rope_exp.config import RunConfig
from rope_exp.decoder import TOKENS_OF_A_CHUNK
from rope_exp.errors import ConfigError
from rope_exp.plan import costs

ASSUMED_MFU = 0.4
# Below this many parameters, a step on a GPU takes about the launch time of its kernels, whatever
# their arithmetic, so a share of the peak predicts nothing.
LEAST_ESTIMATED = 100_000_000
GIB = 2**30


def cost_lines(config: RunConfig) -> list[str]:
    """Return lines that describe a resolved config's costs."""
    model = config.model
    train = config.train
    vocab_size = vocabulary(config)
    architecture = config.architecture(vocab_size)
    params = costs.num_parameters(architecture)
    total = costs.operations(config)
    tokens = train.num_tokens
    widths = " and ".join(map(str, dict.fromkeys(config.attn.widths(model))))
    steps = []
    in_attention = 0
    for stage in train.staged:
        steps.append(f"{len(stage.steps):,} steps of {stage.batch_size} x {stage.seq_len}")
        in_attention += stage.num_tokens * costs.attention_flops_per_token(config, stage.seq_len)

    return [
        f"run          {config.pe.label} {model.name} on {config.data.name}, group {config.group}",
        f"model        {params:,} parameters: {model.num_hidden_layers} layers of "
        f"{model.hidden_size}, {model.num_attention_heads} heads of {widths}, "
        f"vocabulary {architecture.vocab_size:,}",
        f"attention    {config.attn.label}{'' if config.causal else ', both ways'}",
        f"tokens       {tokens:,} in {', then '.join(steps)}, {tokens / params:.1f} a parameter",
        f"operations   {total / tokens:.3e} a token, {in_attention / tokens:.3e} of them in "
        f"attention, {total:.3e} in all",
        f"memory       about {memory_bytes(config, vocab_size) / GIB:.1f} GiB a process in "
        f"{train.precision}",
        f"disk         {checkpoint_bytes(config, vocab_size) / GIB:.2f} GiB a checkpoint, "
        f"{train.keep_checkpoints} kept and one more while saving",
        *_times([config]),
    ]


def checkpoint_bytes(config: RunConfig, vocab_size: int) -> int:
    """Return the size of weights and moments in float32, plus a margin for small files."""
    model = config.model
    architecture = config.architecture(vocab_size)
    # A tied head is saved under both its names, and matrices may have fewer moments than two.
    tied = architecture.vocab_size * model.hidden_size if model.tie_word_embeddings else 0
    in_layers = model.num_hidden_layers * costs.layer_weights(architecture)
    spared = in_layers * (2 - getattr(config.optim, "moments_of_matrices", 2))
    return 12 * costs.num_parameters(architecture) - 4 * spared + 4 * tied + 2**20


def memory_bytes(config: RunConfig, vocab_size: int) -> int:
    """Estimate one process's peak memory in bytes, roughly.

    Counts weights, gradients and two moments in float32, which every process holds; the activations
    of the largest micro-batch, at 34 bytes a feature, token and layer in bf16, twice that in
    float32; the head's gradient three times; and the logits of one chunk of the loss three times
    (bf16, float32, gradient). A bias's scores and the states of kinds come on top.
    """
    train = config.train
    model = config.model
    architecture = config.architecture(vocab_size)

    world_size = int(config.launch.num_processes)
    num_tokens = max(
        train.rows_at_once(stage.batch_size // world_size, stage.seq_len) * stage.seq_len
        for stage in train.staged
    )

    width = 2 if train.precision == "bf16" else 4
    activations = 17 * width * num_tokens * model.num_hidden_layers * model.hidden_size
    head = 12 * architecture.vocab_size * model.hidden_size
    chunk = min(num_tokens, TOKENS_OF_A_CHUNK[config.launch.device])
    logits = 10 * chunk * architecture.vocab_size
    return 16 * costs.num_parameters(architecture) + activations + head + logits


def sweep_lines(configs: Sequence[RunConfig]) -> list[str]:
    """Return lines that describe the total cost of a sweep."""
    total = sum(map(costs.operations, configs))
    tokens = sum(config.train.num_tokens for config in configs)
    return [
        f"sweep        {len(configs)} runs, of which the above is the first: {tokens:,} tokens, "
        f"{total:.3e} operations",
        *_times(configs),
    ]


def vocabulary(config: RunConfig) -> int:
    """Return the vocabulary's size, unless only a pretrained tokenizer knows it."""
    vocab_size = costs.known_vocab_size(config)
    if vocab_size is None:
        reason = "its vocabulary is known once data are prepared"
        raise ConfigError("tokenizer", "pretrained", reason)
    return vocab_size


def _times(configs: Sequence[RunConfig]) -> list[str]:
    """Return a line with the estimated time of all runs for each card, unless a model is small."""
    total = sum(map(costs.operations, configs))
    architectures = (config.architecture(vocabulary(config)) for config in configs)
    if min(map(costs.num_parameters, architectures)) < LEAST_ESTIMATED:
        return []
    lines = []
    for card in ("A100", "H100", "H200"):
        speed = (costs.peak_flops_per_s(card) or 0.0) * ASSUMED_MFU
        time = timedelta(seconds=round(total / speed))
        lines.append(f"time         {time} on one {card} at an assumed {ASSUMED_MFU:.0%} MFU")
    return lines


def with_matched(config: RunConfig) -> RunConfig:
    """Return a config whose MLP has the width that model.match_params asks for."""
    model = config.model
    wanted = model.match_params
    assert wanted is not None
    vocab_size = costs.known_vocab_size(config)
    if config.pe.code is not None:
        # Counting would run its code.
        reason = "cannot be met with pe.code; set model.intermediate_size"
        raise ConfigError("model.match_params", wanted, reason)
    if vocab_size is None:
        reason = "needs a vocabulary whose size is known: a pretrained tokenizer's is not"
        raise ConfigError("model.match_params", wanted, reason)
    architecture = config.architecture(vocab_size)

    def count(width: int) -> int:
        sized = replace(model, intermediate_size=width)
        return costs.num_parameters(replace(architecture, model=sized))

    # The number of parameters is linear in the width.
    narrowest = count(1)
    width = max(1, 1 + round((wanted - narrowest) / (count(2) - narrowest)))
    if abs(count(width) - wanted) > 1e-3 * wanted:
        reason = (
            f"cannot be met within 0.1 %: the nearest MLP has a width of {width} and gives "
            f"{count(width):,} parameters"
        )
        raise ConfigError("model.match_params", wanted, reason)
    return config.replace("model", intermediate_size=width)
