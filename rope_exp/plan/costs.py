"""Estimates of floating-point operations and memory, and a table of devices' peaks.

Parameters are counted by building a model (model/count.py).
"""

import math
import re

from rope_exp.config.learning import MuonConfig
from rope_exp.config.objective import num_predicted
from rope_exp.config.run import RunConfig
from rope_exp.config.stages import Stage
from rope_exp.model.count import adds_scores, layer_weights, num_parameters
from rope_exp.model.limits import CHUNK, MAX_WRITTEN_OUT, TOKENS_OF_A_CHUNK

# Float32 weights, their gradient and two moments. Every process holds all of them.
BYTES_A_PARAMETER = 16

# Dense bf16 peaks in TFLOP/s by the vendor's datasheets, without sparsity, sums in float32.
# Matched as whole words of the device's name, in this order: an H100 PCIe is not an H100.
PEAK_TFLOPS = {
    "GB200": 2500.0,
    "B200": 2250.0,
    "H200 NVL": 835.0,
    "H200": 989.0,
    "GH200": 989.0,
    "H100 PCIe": 756.0,
    "H100 NVL": 835.0,
    "H100": 989.0,
    "H800": 989.0,
    "A100": 312.0,
    "A800": 312.0,
    "A40": 149.7,
    "A30": 165.0,
    "A10": 125.0,
    "L40S": 362.0,
    "L40": 181.0,
    "L4": 121.0,
    "RTX 6000 Ada": 364.2,
    "RTX A6000": 154.8,
    "RTX 5090": 209.5,
    "RTX 4090": 165.2,
    "RTX 3090 Ti": 80.0,
    "RTX 3090": 71.0,
}
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
    that with the backward pass. Without a causal mask a query attends to T keys.
    """
    model = config.model
    return model.num_hidden_layers * config.attn.flops(model, seq_len, causal=config.causal)


def flops_per_token(config: RunConfig, vocab_size: int, seq_len: int | None = None) -> int:
    """Return MFU's numerator: operations in weights and attention, nothing recomputed.

    Each weight takes 6 operations per training token; each weight of the head, 6 per predicted
    token.

    Args:
        vocab_size: the tokenizer's.
        seq_len: of a stage; None: train.seq_len.
    """
    model = config.model
    seq_len = seq_len or config.train.seq_len
    architecture = config.architecture(vocab_size)

    in_layers = 6 * model.num_hidden_layers * layer_weights(architecture)
    head = architecture.head_size * model.hidden_size
    in_head = 6 * head * num_predicted(config.train, seq_len) // seq_len
    return in_layers + in_head + attention_flops_per_token(config, seq_len)


def run_flops(config: RunConfig, vocab_size: int) -> int:
    """Return the operations of the whole run, stage by stage."""
    return sum(
        stage.num_tokens * flops_per_token(config, vocab_size, stage.seq_len)
        for stage in config.train.staged
    )


def checkpoint_bytes(config: RunConfig, vocab_size: int) -> int:
    """Return the size of weights and moments in float32, plus a margin for small files.

    AdamW has two moments; Muon has one for each matrix that it updates. A tied head is saved under
    both its names.

    Args:
        vocab_size: the tokenizer's.
    """
    model = config.model
    architecture = config.architecture(vocab_size)
    tied = architecture.vocab_size * model.hidden_size if model.tie_word_embeddings else 0
    of_layers = model.num_hidden_layers * layer_weights(architecture)
    spared = of_layers if isinstance(config.optim, MuonConfig) else 0
    every = num_parameters(architecture)
    return 12 * every - 4 * spared + 4 * tied + 2**20


def memory_bytes(config: RunConfig, vocab_size: int) -> int:
    """Estimate one process's peak memory in bytes.

    Counts weights, gradients and moments in float32; the micro-batch of the most demanding stage;
    and the head's gradient three times. A bias of the scores grows with the square of the length.

    Args:
        vocab_size: the tokenizer's.
    """
    train = config.train
    model = config.model
    architecture = config.architecture(vocab_size)

    head = 12 * architecture.vocab_size * model.hidden_size
    batch = max(
        _micro_batch_bytes(config, stage, architecture.vocab_size) for stage in train.staged
    )
    # Biases, each three times in float32: itself, its added form, its gradient. One serves all
    # layers; those of a class of one's own are of each layer and row.
    num_biases = int(config.pe.bias != "none")
    if config.pe.code is not None:
        rows = max(_sequences_at_once(config, stage) for stage in train.staged)
        num_biases += adds_scores(config.pe) * model.num_hidden_layers * rows
    biases = 12 * model.num_attention_heads * train.longest**2 * num_biases
    return BYTES_A_PARAMETER * num_parameters(architecture) + batch + head + biases


def _micro_batch_bytes(config: RunConfig, stage: Stage, vocab_size: int) -> int:
    """Estimate the memory of one micro-batch in bytes.

    Activations: about 34 bytes a feature, token and layer in bf16 with fused attention (twice that
    in float32), and 6 more with model.token_shift; the excess of queries, keys, values and outputs
    if their heads are wider than the model's, before and after rotation; explicit attention
    weights; and the states between chunks. Logits of one chunk of the loss three times (bf16,
    float32, gradient).

    Args:
        vocab_size: the decoder's.
    """
    model = config.model
    device = config.launch.device
    width = _width(config)
    rows = _sequences_at_once(config, stage)

    heads = 2 * model.num_attention_heads * sum(config.attn.widths(model))
    features = (17 + 3 * model.token_shift) * model.hidden_size
    a_layer = width * (features + 2 * max(0, heads - 4 * model.hidden_size))
    if device == "cpu" and stage.seq_len <= MAX_WRITTEN_OUT and config.attn.keeps_keys:
        a_layer += width * model.num_attention_heads * stage.seq_len
    activations = rows * stage.seq_len * model.num_hidden_layers * a_layer

    predicted = rows * num_predicted(config.train, stage.seq_len)
    logits = 10 * min(predicted, TOKENS_OF_A_CHUNK[device]) * vocab_size
    return activations + state_bytes(config, stage) + logits


def state_bytes(config: RunConfig, stage: Stage) -> int:
    """Estimate one process's peak memory of the states between chunks, in bytes.

    Each layer keeps the states that its queries read, for the gradient, in the precision of the
    products. The layer that computes holds them in float32 three times: the term that each chunk
    adds, and the sums after and before each chunk.
    """
    model = config.model
    chunks = math.ceil(stage.seq_len / CHUNK)
    numbers = _sequences_at_once(config, stage) * chunks * config.attn.head_states(model)
    return numbers * (_width(config) * model.num_hidden_layers + 3 * 4)


def _sequences_at_once(config: RunConfig, stage: Stage) -> int:
    """Return the sequences of one process's micro-batch."""
    share = stage.batch_size // int(config.launch.num_processes)
    return config.train.rows_at_once(share, stage.seq_len)


def _width(config: RunConfig) -> int:
    """Return the bytes of a number in the precision of matrix products."""
    return 2 if config.train.precision == "bf16" else 4
