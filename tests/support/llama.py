"""LLaMA models of transformers with a decoder's sizes."""

from typing import Any

from transformers import LlamaConfig, LlamaForCausalLM

from rope_exp.sections import ModelConfig
from support.models import VOCAB


def keys_of(sizes: ModelConfig) -> dict[str, Any]:
    """Return these sizes under the keys of transformers' configs."""
    names = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    names += ("num_key_value_heads", "rms_norm_eps", "tie_word_embeddings")
    keys = {name: getattr(sizes, name) for name in names}
    return {"vocab_size": VOCAB, "attn_implementation": "eager", **keys}


def llama_like(sizes: ModelConfig, **changes: Any) -> LlamaForCausalLM:
    return LlamaForCausalLM(LlamaConfig(**keys_of(sizes), **changes))
