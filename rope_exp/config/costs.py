"""Counting: parameters, floating-point operations, memory and peaks. Arithmetic only, no torch."""

import re

from rope_exp.config.run import ModelConfig, PeConfig, RunConfig

# Dense bf16 peaks in TFLOP/s by the vendor's datasheet, without sparsity; the key is found in the device's name.
# Matched as whole words of the device's name, in this order: an H100 PCIe is no H100, and an L40 no L4.
PEAK_TFLOPS = {
    "B200": 2250.0,
    "H200 NVL": 835.0,
    "H200": 989.0,
    "GH200": 989.0,
    "H100 PCIe": 756.0,
    "H100 NVL": 835.0,
    "H100": 989.0,
    "A100": 312.0,
    "A800": 312.0,
    "H800": 989.0,
    "L40S": 362.0,
    "L4": 121.0,
    "A10": 125.0,
}


# Of one chunk of the loss, which passes once over the gradient of the head: a tenth of the time of its products.
TOKENS_OF_A_CHUNK = {"cpu": 512, "cuda": 8192}
# The longest sequence whose attention is written out, on a CPU: its memory grows with the square of the length.
MAX_WRITTEN_OUT = 2048


def peak_flops_per_s(device_name: str) -> float | None:
    """The device's dense bf16 peak in FLOP/s, or None for a device that the table does not hold."""
    return next(
        (
            peak * 1e12
            for name, peak in PEAK_TFLOPS.items()
            if re.search(rf"\b{name}\b", device_name)
        ),
        None,
    )


def num_parameters(model: ModelConfig, pe: PeConfig, vocab_size: int) -> int:
    """Every parameter, a tied head once."""
    embeddings = vocab_size * model.hidden_size * (1 if model.tie_word_embeddings else 2)
    norms = model.hidden_size * (2 * model.num_hidden_layers + 1)
    frequencies = pe.num_features(model.head_dim) // 2 if pe.trainable else 0
    return embeddings + norms + frequencies + model.num_hidden_layers * _layer_weights(model)


def matmul_flops_per_token(model: ModelConfig, vocab_size: int) -> int:
    """Of one training token (forward and backward) in the weights: 6 a weight, the head's included."""
    return 6 * (model.num_hidden_layers * _layer_weights(model) + vocab_size * model.hidden_size)


def attention_flops_per_token(model: ModelConfig, seq_len: int) -> int:
    """Of one training token in the scores and the weighted sum, causal: 6 layers (T + 1) D.

    A query at position t meets t + 1 keys, (T + 1)/2 on average; each costs 2 D operations for the score and 2 D for
    the sum, three times that with the backward pass.
    """
    return 6 * model.num_hidden_layers * (seq_len + 1) * model.hidden_size


def flops_per_token(config: RunConfig, vocab_size: int) -> int:
    """The numerator of MFU: weights plus causal attention, nothing recomputed."""
    return matmul_flops_per_token(config.model, vocab_size) + attention_flops_per_token(
        config.model, config.train.seq_len
    )


def checkpoint_bytes(config: RunConfig, vocab_size: int) -> int:
    """Weights (a tied head under both names) and AdamW's two moments in float32, and a margin for the small files."""
    tied = vocab_size * config.model.hidden_size if config.model.tie_word_embeddings else 0
    return 12 * num_parameters(config.model, config.pe, vocab_size) + 4 * tied + 2**20


def memory_bytes(config: RunConfig, vocab_size: int, num_processes: int) -> int:
    """An estimate of one process's peak: weights, gradients and moments in float32, activations, a chunk of logits.

    Activations: about 34 bytes a feature, token and layer in bf16 with fused attention (twice that in float32), and the
    weights of attention where it is written out; the logits of one chunk of the loss three times (bf16, float32,
    gradient), and the head's gradient three times.
    """
    train, model, device = config.train, config.model, config.launch.device
    share = train.global_batch_size // num_processes
    micro_tokens = min(train.micro_batch_size or share, share) * train.seq_len
    per_feature = 34 if train.precision == "bf16" else 68
    activations = micro_tokens * model.hidden_size * model.num_hidden_layers * per_feature
    if device == "cpu" and train.seq_len <= MAX_WRITTEN_OUT:
        weights = micro_tokens * train.seq_len * model.num_attention_heads * model.num_hidden_layers
        activations += weights * (2 if train.precision == "bf16" else 4)
    logits = min(micro_tokens, TOKENS_OF_A_CHUNK[device]) * vocab_size
    return (
        16 * num_parameters(model, config.pe, vocab_size)
        + activations
        + 10 * logits
        + 12 * vocab_size * model.hidden_size
    )


def _layer_weights(model: ModelConfig) -> int:
    attention = (
        2
        * model.hidden_size
        * model.head_dim
        * (model.num_attention_heads + model.num_key_value_heads)
    )
    return attention + 3 * model.hidden_size * model.intermediate_size
