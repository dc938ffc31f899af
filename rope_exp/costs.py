"""Parameters, cache, operations and estimated costs of a config, and MLPs of a matched size.

Numbers of parameters and of cached elements are those of a decoder on torch's meta device.
"""

import functools
import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import torch
import yaml

from rope_exp.config import Architecture, RunConfig
from rope_exp.decoder import TOKENS_OF_A_CHUNK, meta_decoder
from rope_exp.errors import ConfigError
from rope_exp.sections import MAX_SIZE, MIN_VOCAB_SIZE, AttentionConfig, ModelConfig, PeConfig

# Floating-point operations of a run from which compiling pays back on a CPU, as measured
# (docs/performance.md) in a sweep, whose later runs reuse the first one's compiled code.
PAYS_TO_COMPILE = 5e12
# Suffixes of other cards with the same number: a laptop's RTX 4090 has half of the peak.
ANOTHER_CARD = r"(?! (Ti|SUPER|D|Laptop|Max-Q)\b)"
ASSUMED_MFU = 0.4
# Below this many parameters, a step on a GPU takes about the launch time of its kernels, whatever
# their arithmetic, so a share of the peak predicts nothing.
LEAST_ESTIMATED = 100_000_000
GIB = 2**30


def num_parameters(architecture: Architecture) -> int:
    """Return the number of parameters; a tied head counts once."""
    return sum(parameter.numel() for parameter in meta_decoder(architecture).parameters())


def layer_weights(architecture: Architecture) -> int:
    """Return the number of weights in a layer's matrices, each of which multiplies every token."""
    parameters = meta_decoder(architecture).model.layers[0].parameters()
    return sum(parameter.numel() for parameter in parameters if parameter.ndim == 2)


@functools.cache
def cached_sizes(
    attn: AttentionConfig, model: ModelConfig, pe: PeConfig
) -> tuple[int, int] | tuple[None, None]:
    """Return a layer's cached elements per token, and the elements of its fixed-size states.

    Each is the largest over layers. Both are None with a user's class (pe.code): reading a record
    must not execute somebody's code.

    Args:
        attn: the kind of attention.
        model: the sizes of the model.
        pe: the variant, whose biases and tables may add rows.
    """
    if pe.code is not None:
        return None, None
    # Leave out added positions: they cache nothing, and this Architecture has no positions for
    # them.
    rotating = replace(pe, input="none", input_scale=None)
    decoder = meta_decoder(Architecture(model, rotating, vocab_size=1, attn=attn))
    cache = decoder.new_cache()
    with torch.no_grad(), torch.device("meta"):
        decoder(torch.zeros(1, 1, dtype=torch.int64), cache=cache)

    most_rows = 0
    most_states = 0
    for layer in cache:
        most_rows = max(most_rows, sum(row.numel() for row in layer.rows.values()))
        most_states = max(most_states, sum(state.numel() for state in layer.states.values()))
    return most_rows, most_states


def peak_flops_per_s(device_name: str) -> float | None:
    """Return the device's dense bf16 peak in FLOP/s, or None if peaks.yaml lacks it."""
    peaks = yaml.safe_load(Path(__file__).with_name("peaks.yaml").read_text(encoding="utf-8"))
    for name, tflops in peaks.items():
        if re.search(rf"\b{name}\b{ANOTHER_CARD}", device_name):
            return float(tflops) * 1e12
    return None


def known_vocab_size(config: RunConfig) -> int | None:
    """Return the vocabulary's size; None if only a pretrained tokenizer itself knows it."""
    if config.task is not None:
        return len(config.task.tokens)
    return MIN_VOCAB_SIZE if config.tokenizer.kind == "bytes" else config.tokenizer.vocab_size


def operations(config: RunConfig) -> int:
    """Return the FLOP of the whole run; a pretrained tokenizer counts as the smallest."""
    vocab_size = known_vocab_size(config) or MIN_VOCAB_SIZE
    total = 0
    for stage in config.train.staged:
        total += stage.num_tokens * flops_per_token(config, vocab_size, stage.seq_len)
    return total


def pays_to_compile(config: RunConfig) -> bool:
    """Return whether compiling a run pays back on a CPU; each length has its own graphs."""
    num_lengths = len({stage.seq_len for stage in config.train.staged})
    return operations(config) >= PAYS_TO_COMPILE * num_lengths


def attention_flops_per_token(config: RunConfig, seq_len: int) -> int:
    """Return the operations of one training token in attention, without those of its weights.

    A score and a weighted sum take 2 operations a feature and key, as does adding to and reading a
    number of a state; the backward pass takes twice as many. Softmax attention takes 6 L (T + 1) D,
    for L layers: a query at position t attends to t + 1 keys, (T + 1)/2 on average.
    """
    model = config.model
    attn = config.attn
    layers = range(model.num_hidden_layers)
    if not attn.keeps_keys:
        return 12 * len(layers) * attn.head_states(model)

    pairs = seq_len * seq_len
    if config.causal:
        total = 0
        for layer in layers:
            # The first n queries attend to all tokens so far, and the others to n of them.
            n = min(model.window_of(layer) or seq_len, seq_len)
            total += n * (n + 1) // 2 + (seq_len - n) * n
        # The mean over layers.
        pairs = total // len(layers)
    in_layer = 6 * model.num_attention_heads * sum(attn.widths(model)) * pairs // seq_len
    return len(layers) * in_layer


def flops_per_token(config: RunConfig, vocab_size: int, seq_len: int | None = None) -> int:
    """Return MFU's numerator: the operations of one training token, nothing recomputed.

    Args:
        config: the run's config.
        vocab_size: the ids of the tokenizer.
        seq_len: T, the tokens of a sequence; None: train.seq_len.
    Returns:
        Floating-point operations in weights and attention, forward and backward.
    """
    model = config.model
    if seq_len is None:
        seq_len = config.train.seq_len
    architecture = config.architecture(vocab_size)

    # Each weight takes 6 operations per token, and those of the head 6 per predicted token.
    in_layers = 6 * model.num_hidden_layers * layer_weights(architecture)
    head = (architecture.num_outputs or architecture.vocab_size) * model.hidden_size
    in_head = 6 * head * config.num_predicted(seq_len) // seq_len
    return in_layers + in_head + attention_flops_per_token(config, seq_len)


def cost_lines(config: RunConfig) -> list[str]:
    """Return lines that describe a resolved config's costs."""
    model = config.model
    train = config.train
    vocab_size = vocabulary(config)
    architecture = config.architecture(vocab_size)
    params = num_parameters(architecture)
    total = operations(config)
    tokens = train.num_tokens
    widths = " and ".join(map(str, dict.fromkeys(config.attn.widths(model))))
    steps = []
    in_attention = 0
    for stage in train.staged:
        steps.append(f"{len(stage.steps):,} steps of {stage.batch_size} x {stage.seq_len}")
        in_attention += stage.num_tokens * attention_flops_per_token(config, stage.seq_len)

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
    in_layers = model.num_hidden_layers * layer_weights(architecture)
    spared = in_layers * (2 - getattr(config.optim, "moments_of_matrices", 2))
    return 12 * num_parameters(architecture) - 4 * spared + 4 * tied + 2**20


def memory_bytes(config: RunConfig, vocab_size: int) -> int:
    """Return a rough estimate of one process's peak memory, in bytes.

    Counts weights, gradients and two moments in float32, which every process holds; the activations
    of the largest micro-batch, at 34 bytes a feature, token and layer in bf16, twice that in
    float32; the head's gradient three times; and the logits of one chunk of the loss three times
    (bf16, float32, gradient). A bias's scores and the states of kinds come on top.
    """
    train = config.train
    model = config.model
    architecture = config.architecture(vocab_size)

    world_size = int(config.launch.num_processes)
    num_tokens = 0
    for stage in train.staged:
        num_rows = train.rows_at_once(stage.batch_size // world_size, stage.seq_len)
        num_tokens = max(num_tokens, num_rows * stage.seq_len)

    width = 2 if train.precision == "bf16" else 4
    activations = 17 * width * num_tokens * model.num_hidden_layers * model.hidden_size
    head = 12 * architecture.vocab_size * model.hidden_size
    chunk = min(num_tokens, TOKENS_OF_A_CHUNK[config.launch.device])
    logits = 10 * chunk * architecture.vocab_size
    return 16 * num_parameters(architecture) + activations + head + logits


def sweep_lines(configs: Sequence[RunConfig]) -> list[str]:
    """Return lines that describe the total cost of a sweep."""
    total = sum(map(operations, configs))
    tokens = sum(config.train.num_tokens for config in configs)
    return [
        f"sweep        {len(configs)} runs, of which the above is the first: {tokens:,} tokens, "
        f"{total:.3e} operations",
        *_times(configs),
    ]


def vocabulary(config: RunConfig) -> int:
    """Return the vocabulary's size, unless only a pretrained tokenizer knows it."""
    vocab_size = known_vocab_size(config)
    if vocab_size is None:
        reason = "its vocabulary is known once data are prepared"
        raise ConfigError("tokenizer", "pretrained", reason)
    return vocab_size


def _times(configs: Sequence[RunConfig]) -> list[str]:
    """Return a line with the estimated time of all runs for each card, unless a model is small."""
    total = sum(map(operations, configs))
    smallest = min(num_parameters(config.architecture(vocabulary(config))) for config in configs)
    if smallest < LEAST_ESTIMATED:
        return []
    lines = []
    for card in ("A100", "H100", "H200"):
        speed = (peak_flops_per_s(card) or 0.0) * ASSUMED_MFU
        time = timedelta(seconds=round(total / speed))
        lines.append(f"time         {time} on one {card} at an assumed {ASSUMED_MFU:.0%} MFU")
    return lines


def with_matched(config: RunConfig) -> RunConfig:
    """Return a config whose MLP has the width that model.match_params asks for."""
    model = config.model
    wanted = model.match_params
    assert wanted is not None
    vocab_size = known_vocab_size(config)
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
        return num_parameters(replace(architecture, model=sized))

    # The number of parameters is linear in the width.
    narrowest = count(1)
    width = max(1, 1 + round((wanted - narrowest) / (count(2) - narrowest)))
    if width > MAX_SIZE:
        reason = f"cannot be met: the MLP would have a width of {width:,}, above {MAX_SIZE:,}"
        raise ConfigError("model.match_params", wanted, reason)
    if abs(count(width) - wanted) > 1e-3 * wanted:
        reason = (
            f"cannot be met within 0.1 %: the nearest MLP has a width of {width} and gives "
            f"{count(width):,} parameters"
        )
        raise ConfigError("model.match_params", wanted, reason)
    return config.replace("model", intermediate_size=width)
