"""Tests of patched transformers models against our decoder with the same weights and sites."""

from typing import Any

import pytest
import torch
from support.models import BASE, SUBSETS, VOCAB, make_sizes, opinionated, tokens
from support.refused import refused
from transformers import (
    BitNetConfig,
    BitNetForCausalLM,
    FlexOlmoConfig,
    FlexOlmoForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GlmConfig,
    GlmForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    Olmo2Config,
    Olmo2ForCausalLM,
    Olmo3Config,
    Olmo3ForCausalLM,
    OlmoConfig,
    OlmoForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    SmolLM3Config,
    SmolLM3ForCausalLM,
    StableLmConfig,
    StableLmForCausalLM,
)

from rope_exp import patch
from rope_exp.decoder import Decoder, weights

LENGTH = 20
SIZES = {
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


def llama(decoder: Decoder) -> Any:
    model = LlamaForCausalLM(LlamaConfig(**SIZES))
    model.load_state_dict(weights(decoder))
    return model.eval()


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


@pytest.mark.parametrize("sites", SUBSETS, ids="".join)
def test_any_subset_is_ours(sites: tuple[str, ...]) -> None:
    decoder = opinionated(*sites).float()
    model = llama(decoder)
    undo = patch(model, sites)
    assert difference(model, decoder) < 1e-5
    undo()
    is_as_before = sites == ("q", "k")
    assert (difference(model, decoder) < 1e-5) == is_as_before


def test_queries_and_keys_turn_behind_their_norm() -> None:
    decoder = opinionated(*"qkvo", sizes=make_sizes(qk_norm=True)).float()
    model = Qwen3ForCausalLM(Qwen3Config(**SIZES, head_dim=8))
    model.load_state_dict(weights(decoder))
    patch(model.eval(), "qkvo")
    assert difference(model, decoder) < 1e-5


@torch.no_grad()
def test_norms_of_heads_before_tokens_are_known_by_their_shape() -> None:
    """Gemma 3 norms [B, H, T, K]; of as many tokens as heads, the shape alone says nothing."""
    torch.manual_seed(0)
    sizes = {key: value for key, value in SIZES.items() if key != "rope_parameters"}
    model = Gemma3ForCausalLM(Gemma3TextConfig(**sizes, head_dim=8)).eval()
    ids_BT = tokens(2, SIZES["num_attention_heads"])
    own = model(ids_BT).logits
    patch(model, "qk")
    assert float((model(ids_BT).logits - own).abs().max()) < 1e-5


def test_layers_that_rotate_nothing_stay_so() -> None:
    decoder = opinionated(*"vo", layers=(1, 0)).float()
    model = SmolLM3ForCausalLM(SmolLM3Config(**SIZES, no_rope_layers=[1, 0]))
    model.load_state_dict(weights(decoder))
    patch(model.eval(), "vo")
    assert difference(model, decoder) < 1e-5


@pytest.mark.parametrize("pad_id", [0, 1, None])
def test_a_padding_token_does_not_hide_the_measure(pad_id: int | None) -> None:
    """Its embedding is zero, so alone it gives no attention at all: 0/0 is no small number."""
    sizes = SIZES | {"pad_token_id": pad_id, "bos_token_id": None, "eos_token_id": None}
    patch(LlamaForCausalLM(LlamaConfig(**sizes)), "vo")
    with refused("BitNetForCausalLM", "does more to v and o"):
        patch(loud(BitNetForCausalLM(BitNetConfig(**sizes))), "vo")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(
    ("model", "config"),
    [
        (OlmoForCausalLM, OlmoConfig),
        (Olmo2ForCausalLM, Olmo2Config),
        (Olmo3ForCausalLM, Olmo3Config),
        (FlexOlmoForCausalLM, FlexOlmoConfig),
    ],
)
@torch.no_grad()
def test_float32_tables_leave_the_models_dtype(model: Any, config: Any, dtype: torch.dtype) -> None:
    """OLMo's tables are float32 in any model; with q and k alone it gives its own logits."""
    sizes = SIZES | {"bos_token_id": None, "eos_token_id": None}
    torch.manual_seed(0)
    made = model(config(**sizes)).to(dtype).eval()
    ids_BT = tokens(2, LENGTH)
    own = made(ids_BT).logits
    undo = patch(made, "qk")
    torch.testing.assert_close(made(ids_BT).logits, own)
    undo()
    patch(made, "qkvo")
    assert made(ids_BT).logits.dtype == dtype


@torch.no_grad()
def test_a_deep_model_in_bfloat16_is_measured_by_layer() -> None:
    """Rounding grows with depth: the logits of two correct forms differ by several percent."""
    for seed in range(4):
        torch.manual_seed(seed)
        deep = LlamaConfig(**SIZES | {"num_hidden_layers": 48, "hidden_size": 64})
        patch(LlamaForCausalLM(deep).bfloat16(), "vo")


@torch.no_grad()
def test_a_patched_model_generates_from_its_cache() -> None:
    decoder = opinionated(*"kvo").float()
    model = llama(decoder)
    patch(model, "kvo")
    ids_BT = tokens(1, 9)
    expected = ids_BT
    for _ in range(6):
        expected = torch.cat([expected, decoder(expected)[:, -1:].argmax(-1)], dim=1)
    said = model.generate(
        ids_BT, attention_mask=torch.ones_like(ids_BT), max_new_tokens=6, do_sample=False
    )
    assert said.tolist() == expected.tolist()


def test_what_cannot_be_patched_is_refused() -> None:
    twice = LlamaForCausalLM(LlamaConfig(**SIZES))
    undo = patch(twice, "vo")
    with refused("LlamaAttention", "is patched already"):
        patch(twice, "qk")
    undo()
    patch(twice, "qk")

    yarn = SIZES | {"rope_parameters": {"rope_type": "yarn", "rope_theta": BASE, "factor": 8.0}}
    with refused("LlamaForCausalLM", "scales its tables"):
        patch(LlamaForCausalLM(LlamaConfig(**yarn, max_position_embeddings=64)), "vo")
    with refused("GlmAttention", "pairs other features"):
        patch(GlmForCausalLM(GlmConfig(**SIZES, head_dim=8)), "vo")
    with refused("rotate=qx", "some of q, k, v, o"):
        patch(LlamaForCausalLM(LlamaConfig(**SIZES)), "xq")
    with refused("OlmoAttention", "clip_qkv"):
        patch(OlmoForCausalLM(OlmoConfig(**SIZES, clip_qkv=8.0)), "vo")
    # Its norm has another name, so queries and keys would turn before it.
    sizes = SIZES | {"bos_token_id": None, "eos_token_id": None}
    stable = StableLmConfig(**sizes, qk_layernorm=True, partial_rotary_factor=1.0)
    with refused("StableLmForCausalLM", "does more to q and k"):
        patch(loud(StableLmForCausalLM(stable)), "qk")
    # It norms the heads' outputs before the last projection.
    with refused("BitNetForCausalLM", "does more to v and o"):
        patch(loud(BitNetForCausalLM(BitNetConfig(**sizes))), "vo")
    gpt2 = GPT2LMHeadModel(GPT2Config(n_embd=8, n_head=1, n_layer=1, vocab_size=9))
    with refused("model=GPT2LMHeadModel", "q_proj"):
        patch(gpt2, "vo")
