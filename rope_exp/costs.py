"""Parameters, cache, FLOPs and memory, from the decoder built on torch's meta device."""

import functools
import re
from dataclasses import replace

import torch

from rope_exp.config import RunConfig
from rope_exp.decoder import TOKENS_OF_A_CHUNK, on_meta
from rope_exp.errors import ConfigError
from rope_exp.sections import Architecture, Kind, ModelConfig, PeConfig

# Largest relative deviation from model.match_params at the nearest whole width of the MLP.
NEAR = 1e-3


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


def with_matched(config: RunConfig) -> RunConfig:
    """Return a config whose MLP has the width that model.match_params asks for, if it asks."""
    model = config.model
    wanted = model.match_params
    if wanted is None:
        return config
    vocab_size = config.known_vocab_size
    reason = ""
    if config.pe.code is not None:
        # Counting would run its code.
        reason = "cannot be met with pe.code; set model.intermediate_size"
    elif vocab_size is None:
        reason = "needs a vocabulary whose size is known: a pretrained tokenizer's is not"
    if vocab_size is None or reason:
        raise ConfigError("model.match_params", wanted, reason)
    architecture = config.architecture(vocab_size)

    def count(width: int) -> int:
        sized = replace(model, intermediate_size=width)
        return num_parameters(replace(architecture, model=sized))

    # The number of parameters is linear in the width.
    narrowest = count(1)
    width = max(1, 1 + round((wanted - narrowest) / (count(2) - narrowest)))
    if abs(count(width) - wanted) > NEAR * wanted:
        reason = (
            f"cannot be met within 0.1 %: the nearest MLP has a width of {width} and gives "
            f"{count(width):,} parameters"
        )
        raise ConfigError("model.match_params", wanted, reason)
    return config.replace("model", intermediate_size=width)


# Float32 weights, their gradient and two moments. Every process holds all of them.
BYTES_A_PARAMETER = 16

# Dense bf16 peaks in TFLOP/s by the vendor's datasheets, without sparsity, sums in float32.
# Matched as whole words of the device's name, in this order: an H100 PCIe is not an H100.
PEAK_TFLOPS = {
    "GB200": 2500.0, "B200": 2250.0,
    "H200 NVL": 835.0, "H200": 989.0, "GH200": 989.0,
    "H100 PCIe": 756.0, "H100 NVL": 835.0, "H100": 989.0, "H800": 989.0,
    "A100": 312.0, "A800": 312.0, "A40": 149.7, "A30": 165.0, "A10": 125.0,
    "L40S": 362.0, "L40": 181.0, "L4": 121.0,
    "RTX 6000 Ada": 364.2, "RTX A6000": 154.8,
    "RTX 5090": 209.5, "RTX 4090": 165.2, "RTX 3090 Ti": 80.0, "RTX 3090": 71.0,
}  # fmt: skip
# Suffixes of other cards with the same number: a laptop's RTX 4090 has half of the peak.
ANOTHER_CARD = r"(?! (Ti|SUPER|D|Laptop|Max-Q)\b)"


def peak_flops_per_s(device_name: str) -> float | None:
    """Return the device's dense bf16 peak in FLOP/s, or None if the table lacks it."""
    for name, peak in PEAK_TFLOPS.items():
        if re.search(rf"\b{name}\b{ANOTHER_CARD}", device_name):
            return peak * 1e12
    return None


def attention_flops_per_token(config: RunConfig, seq_len: int) -> int:
    """Return the operations of one training token in attention, without those of its weights.

    Softmax attention takes 6 layers (T + 1) D: a query at position t attends to t + 1 keys,
    (T + 1)/2 on average; each costs 2 D operations for the score and 2 D for the sum, three times
    that with the backward pass.
    """
    model = config.model
    return model.num_hidden_layers * config.attn.flops(model, seq_len, causal=config.causal)


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


def run_flops(config: RunConfig, vocab_size: int) -> int:
    """Return the operations of the whole run, stage by stage."""
    return sum(
        stage.num_tokens * flops_per_token(config, vocab_size, stage.seq_len)
        for stage in config.train.staged
    )


def checkpoint_bytes(config: RunConfig, vocab_size: int) -> int:
    """Return the size of weights and moments in float32, plus a margin for small files."""
    model = config.model
    architecture = config.architecture(vocab_size)
    # A tied head is saved under both its names, and matrices may have fewer moments than two.
    tied = architecture.vocab_size * model.hidden_size if model.tie_word_embeddings else 0
    in_layers = model.num_hidden_layers * layer_weights(architecture)
    spared = in_layers * (2 - config.optim.moments_of_matrices)
    return 12 * num_parameters(architecture) - 4 * spared + 4 * tied + 2**20


def memory_bytes(config: RunConfig, vocab_size: int) -> int:
    """Estimate one process's peak memory in bytes, roughly.

    Counts weights, gradients and moments in float32; the activations of the largest micro-batch, at
    34 bytes a feature, token and layer in bf16, twice that in float32; the head's gradient three
    times; and the logits of one chunk of the loss three times (bf16, float32, gradient). Scores
    that a bias adds, and the states of kinds that keep one, come on top.
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
    return BYTES_A_PARAMETER * num_parameters(architecture) + activations + head + logits
