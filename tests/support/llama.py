"""LLaMA models of transformers with a decoder's sizes."""

from typing import Any

from transformers import LlamaConfig, LlamaForCausalLM

from rope_exp.sections import ModelConfig
from support.models import VOCAB


def keys_of(sizes: ModelConfig) -> dict[str, Any]:
    """Return these sizes under the keys of transformers' configs."""
    return {
        "vocab_size": VOCAB,
        "hidden_size": sizes.hidden_size,
        "intermediate_size": sizes.intermediate_size,
        "num_hidden_layers": sizes.num_hidden_layers,
        "num_attention_heads": sizes.num_attention_heads,
        "num_key_value_heads": sizes.num_key_value_heads,
        "rms_norm_eps": sizes.rms_norm_eps,
        "tie_word_embeddings": sizes.tie_word_embeddings,
        "attn_implementation": "eager",
    }


def llama_like(sizes: ModelConfig, **changes: Any) -> LlamaForCausalLM:
    """Return a LLaMA of these sizes, with `changes` to its config."""
    return LlamaForCausalLM(LlamaConfig(**keys_of(sizes), **changes))
