"""Parameters, cache and operations of a config, from the decoder built on torch's meta device."""

import functools
import re
from dataclasses import replace
from pathlib import Path

import torch
import yaml

from rope_exp.config import Architecture, RunConfig
from rope_exp.decoder import on_meta
from rope_exp.sections import MIN_VOCAB_SIZE, Kind, ModelConfig, PeConfig

# Floating-point operations of a run from which compiling pays back on a CPU, as measured
# (docs/performance.md) in a sweep, whose later runs reuse the first one's compiled code.
PAYS_TO_COMPILE = 5e12
# Suffixes of other cards with the same number: a laptop's RTX 4090 has half of the peak.
ANOTHER_CARD = r"(?! (Ti|SUPER|D|Laptop|Max-Q)\b)"


def num_parameters(architecture: Architecture) -> int:
    """Return the number of parameters; a tied head counts once."""
    return sum(parameter.numel() for parameter in on_meta(architecture).parameters())


def layer_weights(architecture: Architecture) -> int:
    """Return the number of weights in a layer's matrices, each of which multiplies every token."""
    parameters = on_meta(architecture).model.layers[0].parameters()
    return sum(parameter.numel() for parameter in parameters if parameter.ndim == 2)


@functools.cache
def kept(attn: Kind, model: ModelConfig, pe: PeConfig) -> tuple[int, int] | tuple[None, None]:
    """Return a layer's cached elements per token, and the elements of its fixed-size states.

    Each is the largest over layers. Unknown with a class of one's own: reading a record must not
    execute somebody's code.
    """
    if pe.code is not None:
        return None, None
    # Added positions change nothing here.
    rotating = replace(pe, input="none", input_scale=None)
    decoder = on_meta(Architecture(model, rotating, vocab_size=1, attn=attn))
    cache = decoder.new_cache()
    with torch.no_grad(), torch.device("meta"):
        decoder(torch.zeros(1, 1, dtype=torch.int64), cache=cache)
    return (
        max(sum(row.numel() for row in layer.rows.values()) for layer in cache),
        max(sum(state.numel() for state in layer.states.values()) for layer in cache),
    )


def peak_flops_per_s(device_name: str) -> float | None:
    """Return the device's dense bf16 peak in FLOP/s, or None if peaks.yaml lacks it."""
    peaks = yaml.safe_load(Path(__file__).with_name("peaks.yaml").read_text(encoding="utf-8"))
    for name, tflops in peaks.items():
        if re.search(rf"\b{name}\b{ANOTHER_CARD}", device_name):
            return float(tflops) * 1e12
    return None


def known_vocab_size(config: RunConfig) -> int | None:
    """Return the vocabulary's size; None if only a pretrained tokenizer itself knows it."""
    if config.data.task is not None:
        return len(config.data.task.tokens)
    return MIN_VOCAB_SIZE if config.tokenizer.kind == "bytes" else config.tokenizer.vocab_size


def operations(config: RunConfig) -> int:
    """Return the FLOP of the whole run; a pretrained tokenizer counts as the smallest."""
    vocab_size = known_vocab_size(config) or MIN_VOCAB_SIZE
    return sum(
        stage.num_tokens * flops_per_token(config, vocab_size, stage.seq_len)
        for stage in config.train.staged
    )


def pays_to_compile(config: RunConfig) -> bool:
    """Return whether compiling a run pays back on a CPU; each length has its own graphs."""
    num_lengths = len({stage.seq_len for stage in config.train.staged})
    return operations(config) >= PAYS_TO_COMPILE * num_lengths


def attention_flops_per_token(config: RunConfig, seq_len: int) -> int:
    """Return the operations of one training token in attention, without those of its weights.

    A score and a weighted sum take 2 operations a feature and key, as does adding to and reading a
    number of a state; the backward pass takes twice as many. Softmax attention takes 6 layers
    (T + 1) D: a query at position t attends to t + 1 keys, (T + 1)/2 on average.
    """
    model = config.model
    attn = config.attn
    layers = range(model.num_hidden_layers)
    if not attn.keeps_keys:
        return 12 * len(layers) * attn.head_states(model)

    pairs = seq_len * seq_len
    if config.causal:
        windows = [min(model.window_of(layer) or seq_len, seq_len) for layer in layers]
        # The mean over layers.
        pairs = sum(n * (n + 1) // 2 + (seq_len - n) * n for n in windows) // len(windows)
    in_layer = 6 * model.num_attention_heads * sum(attn.widths(model)) * pairs // seq_len
    return len(layers) * in_layer


def flops_per_token(config: RunConfig, vocab_size: int, seq_len: int | None = None) -> int:
    """Return MFU's numerator: operations in weights and attention, nothing recomputed."""
    model = config.model
    seq_len = seq_len or config.train.seq_len
    architecture = config.architecture(vocab_size)

    # Each weight takes 6 operations per token, and those of the head 6 per predicted token.
    in_layers = 6 * model.num_hidden_layers * layer_weights(architecture)
    head = (architecture.num_outputs or architecture.vocab_size) * model.hidden_size
    in_head = 6 * head * config.num_predicted(seq_len) // seq_len
    return in_layers + in_head + attention_flops_per_token(config, seq_len)
