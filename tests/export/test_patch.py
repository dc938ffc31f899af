"""Tests of patched transformers models against our decoder with the same weights and sites."""

import copy
from typing import Any

import pytest
import torch
import transformers as tf
from support.models import BASE, SUBSETS, VOCAB, make_sizes, opinionated, tokens
from support.refused import refused

from rope_exp import patch
from rope_exp.decoder import Decoder, weights

LENGTH = 20
SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "pad_token_id": None,
    "rope_parameters": {"rope_type": "default", "rope_theta": BASE},
}

NO_ENDS = {"bos_token_id": None, "eos_token_id": None}


def make(kind: str, **changes: Any) -> Any:
    """Return a small model of transformers' class of this kind."""
    torch.manual_seed(0)
    model = getattr(tf, f"{kind}ForCausalLM")
    return model(model.config_class(**SIZES | changes)).eval()


@torch.no_grad()
def loud(model: Any) -> Any:
    """Scale a model's matrices and norms, as its initial attention is nearly uniform."""
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        parameter.copy_(parameter * 12 if parameter.ndim == 2 else 1 + noise / 2)
    return model


@torch.no_grad()
def difference(model: Any, decoder: Decoder) -> float:
    ids_BT = tokens(2, LENGTH)
    ours = decoder(ids_BT)
    return float((ours - model(ids_BT).logits).abs().max() / ours.abs().max())


MODELS: list[tuple[tuple[str, ...], str, dict[str, Any], dict[str, Any]]] = [
    *((sites, "Llama", {}, {}) for sites in SUBSETS),
    # Queries and keys turn behind their norm.
    (tuple("qkvo"), "Qwen3", {"head_dim": 8}, {"sizes": make_sizes(qk_norm=True)}),
    # Layers that rotate nothing stay so.
    (("v", "o"), "SmolLM3", {"no_rope_layers": [1, 0]}, {"layers": (1, 0)}),
]


@pytest.mark.parametrize(("sites", "kind", "theirs", "ours"), MODELS)
def test_a_patched_model_is_ours(
    sites: tuple[str, ...], kind: str, theirs: dict[str, Any], ours: dict[str, Any]
) -> None:
    decoder = opinionated(*sites, **ours).float()
    model = make(kind, **theirs)
    model.load_state_dict(weights(decoder))
    undo = patch(model, sites)
    assert difference(model, decoder) < 1e-5
    undo()
    is_as_before = sites == ("q", "k")
    assert (difference(model, decoder) < 1e-5) == is_as_before


@torch.no_grad()
def test_norms_of_heads_before_tokens_are_known_by_their_shape() -> None:
    """Gemma 3 norms [B, H, T, K]; of as many tokens as heads, the shape alone says nothing."""
    model = make("Gemma3", head_dim=8, rope_parameters=None)
    ids_BT = tokens(2, SIZES["num_attention_heads"])
    own = model(ids_BT).logits
    patch(model, "qk")
    assert float((model(ids_BT).logits - own).abs().max()) < 1e-5


@pytest.mark.parametrize("pad_id", [0, 1, None])
def test_a_padding_token_does_not_hide_the_measure(pad_id: int | None) -> None:
    """Its embedding is zero, so alone it gives no attention at all: 0/0 is no small number."""
    patch(make("Llama", pad_token_id=pad_id, **NO_ENDS), "vo")
    # It norms the heads' outputs before the last projection.
    with refused("BitNetForCausalLM", "does more to v and o"):
        patch(loud(make("BitNet", pad_token_id=pad_id, **NO_ENDS)), "vo")


@pytest.mark.parametrize("kind", ["Olmo", "Olmo2", "Olmo3", "FlexOlmo"])
@torch.no_grad()
def test_float32_tables_leave_the_models_dtype(kind: str) -> None:
    """OLMo's tables are float32 in any model; with q and k alone it gives its own logits."""
    model = make(kind, **NO_ENDS).bfloat16()
    ids_BT = tokens(2, LENGTH)
    own_BTV = model(ids_BT).logits
    undo = patch(model, "qk")
    torch.testing.assert_close(model(ids_BT).logits, own_BTV)
    undo()
    patch(model, "qkvo")
    assert model(ids_BT).logits.dtype == torch.bfloat16


def test_a_deep_model_in_bfloat16_is_measured_by_layer() -> None:
    """Rounding grows with depth: the logits of two correct forms differ by several percent."""
    patch(make("Llama", num_hidden_layers=48, hidden_size=64).bfloat16(), "vo")


@torch.no_grad()
def test_a_patched_model_generates_from_its_cache() -> None:
    model = loud(make("Llama", **NO_ENDS))
    patch(model, "kvo")
    greedy: dict[str, Any] = {"max_new_tokens": 6, "do_sample": False}
    cached = model.generate(tokens(1, 9), **greedy)
    assert cached.tolist() == model.generate(tokens(1, 9), **greedy, use_cache=False).tolist()


def test_a_model_is_patched_once() -> None:
    twice = make("Llama")
    undo = patch(twice, "vo")
    with refused("LlamaAttention", "is patched already"):
        patch(twice, "qk")
    undo()
    patch(twice, "qk")


def test_attention_that_text_does_not_reach_is_refused() -> None:
    """It could not be measured, such as that of a part that reads images."""
    model = make("Llama")
    model.of_images = copy.deepcopy(model.model.layers[0].self_attn)
    with refused("LlamaAttention", "is not reached by text"):
        patch(model, "vo")
    patch(model.model, "vo")


def test_attention_without_projections_is_refused() -> None:
    gpt2 = tf.GPT2LMHeadModel(tf.GPT2Config(n_embd=8, n_head=1, n_layer=1, vocab_size=9))
    with refused("model=GPT2LMHeadModel", "q_proj"):
        patch(gpt2, "vo")


YARN: dict[str, Any] = {
    "rope_parameters": {"rope_type": "yarn", "rope_theta": BASE, "factor": 8.0},
    "max_position_embeddings": 64,
}
# Its norm has another name, so queries and keys would turn before it.
STABLE = NO_ENDS | {"qk_layernorm": True, "partial_rotary_factor": 1.0}
# Every layer attends, without positions.
GRANITE = NO_ENDS | {
    "layer_types": ["attention", "attention"],
    "num_local_experts": 0,
    "shared_intermediate_size": 48,
    "mamba_n_heads": 2,
    "mamba_d_head": 32,
}
JAMBA = NO_ENDS | {
    "attn_layer_period": 1,
    "attn_layer_offset": 0,
    "num_experts": 1,
    "use_mamba_kernels": False,
}


@pytest.mark.parametrize(
    ("kind", "changes", "sites", "words"),
    [
        ("Llama", YARN, "vo", ("LlamaForCausalLM", "scales its tables")),
        ("Llama", {}, "xq", ("rotate=qx", "some of q, k, v, o")),
        ("Glm", {"head_dim": 8}, "vo", ("GlmAttention", "pairs other features")),
        ("Olmo", {"clip_qkv": 8.0}, "vo", ("OlmoAttention", "clip_qkv")),
        ("StableLm", STABLE, "qk", ("StableLmForCausalLM", "does more to q and k")),
        ("GraniteMoeHybrid", GRANITE, "vo", ("GraniteMoeHybridAttention", "no rotary tables")),
        ("Jamba", JAMBA, "vo", ("JambaAttention", "is given no rotary tables")),
    ],
)
def test_a_model_that_does_something_else_is_refused(
    kind: str, changes: dict[str, Any], sites: str, words: tuple[str, ...]
) -> None:
    with refused(*words):
        patch(loud(make(kind, **changes)), sites)
