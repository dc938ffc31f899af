"""Tests of exported models against our decoder, in each way that transformers uses a model."""

from pathlib import Path
from typing import Any

import pytest
import torch
from support.command import in_a_process
from support.models import SUBSETS, VOCAB, make_pe, make_sizes, opinionated, tokens
from support.own import PULL, example, with_text
from support.refused import refused
from torch.nn.functional import cross_entropy

from rope_exp.attn.latent import Config as LatentConfig
from rope_exp.attn.linear import Config as LinearConfig
from rope_exp.config import Architecture
from rope_exp.decoder import Decoder
from rope_exp.export.write import exported, write_code

LENGTH = 24
# Those that are used in each way that transformers uses a model.
USED: list[dict[str, Any]] = [
    {"rotate": "qk"},
    {"rotate": "k"},
    {"rotate": "o"},
    {"rotate": "qkv", "start": 3},
    {"rotate": "qkvo", "base_vo": 7.0},
    {"rotate": "vo", "trainable": "log", "trainable_scope": "head"},
    {"rotate": "qk", "bias": "alibi"},
    {"rotate": "", "bias": "t5"},
    {"rotate": "", "input": "learned"},
    {"rotate": "vo", "own": "Forget"},
    {"rotate": "", "own": "Polar"},
    {"rotate": "", "own": "Pull"},
    {"rotate": "qk", "own": "Wider"},
    {"rotate": "vo", "own": "Number"},
]
PE: list[dict[str, Any]] = [
    *USED[3:],
    {"rotate": "vo", "fraction": 0.5, "base": 50.0},
    {"rotate": "qkvo", "base_vo": 7.0, "fraction_vo": 0.5, "start": 3},
    {"rotate": "qkvo", "layers": (1, 0), "layers_vo": (0, 1)},
    {"rotate": "qk", "start": 70_000},
    {"rotate": "vo", "trainable": "raw"},
    {"rotate": "qkvo", "trainable": "log", "trainable_scope": "layer"},
    {"rotate": "", "input": "sinusoidal"},
    {"rotate": "", "own": "Tide", "start": 2},
    {"rotate": "", "own": "Wave", "start": 2},
    {"rotate": "qkvo", "own": "Wider"},
]
SIZES: list[dict[str, Any]] = [
    {"tie_word_embeddings": True},
    {"qk_norm": True},
    {"window": 5},
    {"head_dim": 6},
]
CASES = [*((pe, {}) for pe in PE), *(({}, sizes) for sizes in SIZES)]
# In bfloat16, matrices round; angles at position 257 and sums of 300 gates must not.
ACCURATE = ["Polar", "Forget", "Pull", "Number"]
FAR = 300
READER = """
import sys
sys.modules["rope_exp"] = None
from functools import partial
import torch
from transformers import AutoModelForCausalLM
for folder in sys.argv[1:]:
    ids_BT = torch.load(f"{folder}/ids.pt")
    load = partial(AutoModelForCausalLM.from_pretrained, folder, trust_remote_code=True)
    made = {"wide": load()}
    if ids_BT.shape[1] > 100:
        made |= {"narrow": load(dtype="bfloat16"), "moved": load().to(torch.bfloat16)}
    for name in made:
        torch.save(made[name](ids_BT).logits.detach(), f"{folder}/{name}.pt")
"""


def decoder_of(sizes: dict[str, Any], pe: dict[str, Any]) -> Decoder:
    """Return a decoder with attention far from uniform, and learned frequencies moved apart."""
    others = dict(pe)
    rotate = others.pop("rotate", "qkvo")
    own = others.pop("own", None)
    shape = {"causal": others.pop("causal", True), "num_positions": 2 * LENGTH}
    made = example(own, *rotate, **others) if own else make_pe(*rotate, **others)
    decoder = Decoder(Architecture(make_sizes(**sizes), made, VOCAB, **shape))
    decoder.initialise(0)
    with torch.no_grad():
        for number, (name, parameter) in enumerate(decoder.named_parameters()):
            if "inv_freq" in name:
                parameter.add_(0.2 * number)
            elif parameter.ndim == 2 and "lm_head" not in name:
                parameter.mul_(12)
    return decoder.eval()


def assert_close(logits_BTV: torch.Tensor, expected_BTV: torch.Tensor) -> None:
    scale = float(expected_BTV.abs().max())
    assert float((logits_BTV - expected_BTV).abs().max()) < 1e-5 * scale


@torch.no_grad()
def assert_same(decoder: Decoder, made: Any) -> None:
    ids_BT = tokens(2, LENGTH)
    assert_close(made(ids_BT).logits, decoder(ids_BT))


@pytest.mark.parametrize("code", ["auto", "always"])
@pytest.mark.parametrize("sites", SUBSETS, ids="".join)
def test_every_subset_gives_our_logits(sites: tuple[str, ...], code: Any) -> None:
    decoder = decoder_of({}, {"rotate": sites})
    made = exported(decoder, code)
    native = {("q", "k"): "LlamaForCausalLM", (): "SmolLM3ForCausalLM"} if code == "auto" else {}
    assert type(made).__name__ == native.get(sites, "RopeExpForCausalLM")
    assert_same(decoder, made)


@pytest.mark.parametrize("q_rank", [None, 7])
def test_mla_is_deepseek_v3(q_rank: int | None) -> None:
    latent = LatentConfig(kv_rank=10, q_rank=q_rank, nope_dim=6, rope_dim=4, value_dim=5)
    sizes = make_sizes(num_key_value_heads=4)
    decoder = opinionated("q", "k", attn=latent, sizes=sizes).float()
    made = exported(decoder)
    assert type(made).__name__ == "DeepseekV3ForCausalLM"
    assert_same(decoder, made)


used = pytest.mark.parametrize(
    ("pe", "sizes"), [*((pe, {}) for pe in USED), ({}, {"window": 5})], ids=str
)


@used
@torch.no_grad()
def test_every_way_gives_the_logits_of_the_whole(pe: dict[str, Any], sizes: dict[str, Any]) -> None:
    """In parts from a cache; each row of a padded batch alone; with attention in plain products."""
    made = exported(decoder_of(sizes, pe), "always")
    ids_BT = tokens(2, LENGTH)
    whole_BTV = made(ids_BT).logits

    cache = None
    parts = []
    for part in ids_BT.split([7, 1, 5, 1, 10], dim=1):
        output = made(part, past_key_values=cache, use_cache=True)
        cache = output.past_key_values
        parts.append(output.logits)
    assert_close(torch.cat(parts, dim=1), whole_BTV)

    mask_BT = torch.ones_like(ids_BT)
    mask_BT[1, :9] = 0
    both_BTV = made(ids_BT, attention_mask=mask_BT).logits
    assert_close(both_BTV[1:, 9:], made(ids_BT[1:, 9:]).logits)

    made.set_attn_implementation("eager")
    assert_close(made(ids_BT).logits, whole_BTV)


@used
@torch.no_grad()
def test_generate_takes_the_likeliest_by_every_way(
    pe: dict[str, Any], sizes: dict[str, Any]
) -> None:
    """A loop over our decoder gives the same tokens, behind padding, with any cache or none."""
    decoder = decoder_of(sizes, pe)
    made: Any = exported(decoder, "always")
    ids_BT = tokens(1, 10)
    padded_BT = torch.cat([torch.zeros(1, 4, dtype=torch.long), ids_BT], dim=1)
    batch_BT = torch.cat([padded_BT, tokens(1, 14)])
    mask_BT = torch.tensor([[0] * 4 + [1] * 10, [1] * 14])
    for _ in range(8):
        ids_BT = torch.cat([ids_BT, decoder(ids_BT)[:, -1:].argmax(-1)], dim=1)

    greedy: dict[str, Any] = {"max_new_tokens": 8, "do_sample": False, "pad_token_id": 0}
    for way in ({}, {"use_cache": False}, {"cache_implementation": "static"}):
        written_BT = made.generate(batch_BT, attention_mask=mask_BT, **greedy, **way)
        assert written_BT[0, 4:].tolist() == ids_BT[0].tolist(), way


@pytest.mark.parametrize("own", ["Forget", "Number"])
def test_a_narrow_model_writes_the_same_with_any_cache(own: str) -> None:
    """Facts about tokens are cached in float32, beside keys and values of bfloat16."""
    made: Any = exported(decoder_of({}, {"rotate": "vo", "own": own})).bfloat16()
    greedy: dict[str, Any] = {"max_new_tokens": 8, "do_sample": False, "pad_token_id": 0}
    ways: list[dict[str, Any]] = [{"use_cache": False}, {}, {"cache_implementation": "static"}]
    greedy |= {"return_dict_in_generate": True, "output_logits": True}
    whole, *cached = (made.generate(tokens(1, 10), **greedy, **way) for way in ways)
    for written in cached:
        for ours_BV, theirs_BV in zip(written.logits, whole.logits, strict=True):
            torch.testing.assert_close(ours_BV, theirs_BV, rtol=0, atol=0.02)
            # Two tokens may be equally likely in bfloat16: from there on, the texts differ.
            if ours_BV.argmax() != theirs_BV.argmax():
                break


@pytest.mark.parametrize("causal", [True, False])
def test_a_loss_is_ours_and_every_parameter_learns(causal: bool) -> None:
    """A model that looks both ways predicts hidden tokens in their places."""
    pe = {"trainable": "log", "bias": "t5", "causal": causal}
    decoder = decoder_of({"qk_norm": True}, pe)
    made = exported(decoder)
    assert type(made).__name__ == ("RopeExpForCausalLM" if causal else "RopeExpForMaskedLM")
    assert_same(decoder, made)
    ids_BT = tokens(2, LENGTH)
    loss = made(ids_BT, labels=ids_BT).loss
    first = int(causal)
    logits_NV = decoder(ids_BT)[:, : LENGTH - first].flatten(0, 1)
    torch.testing.assert_close(loss, cross_entropy(logits_NV, ids_BT[:, first:].flatten()))
    loss.backward()
    for parameter in made.parameters():
        assert parameter.grad is not None
        assert float(parameter.grad.abs().sum()) > 0
    rotary = made.bfloat16().model.rotary_emb
    assert {parameter.dtype for parameter in rotary.parameters()} == {torch.float32}


@torch.no_grad()
def test_a_process_without_rope_exp_reads_each(tmp_path: Path) -> None:
    """The logits are ours in float32, and a class of one's own keeps it in a narrow model."""
    decoders = {}
    for number, (pe, sizes) in enumerate(CASES):
        decoder = decoder_of(sizes, pe)
        for name, parameter in decoder.named_parameters():
            if name.endswith(".own.bias"):
                parameter.fill_(0.0)
            elif ".own." not in name and "inv_freq" not in name:
                parameter.copy_(parameter.bfloat16())
        folder = tmp_path / str(number)
        exported(decoder, "always").save_pretrained(folder)
        write_code(folder, decoder.architecture.pe)
        ids_BT = tokens(1, FAR if pe.get("own") in ACCURATE else LENGTH)
        torch.save(ids_BT, folder / "ids.pt")
        decoders[folder] = (decoder, ids_BT, pe)
    in_a_process(tmp_path, READER, *map(str, decoders))

    for folder, (decoder, ids_BT, pe) in decoders.items():
        assert_close(torch.load(folder / "wide.pt"), decoder(ids_BT))
        if pe.get("own") in ACCURATE:
            exact_BTV = decoder.double()(ids_BT)[:, 200:]
            for name in ("narrow", "moved"):
                narrow_BTV = torch.load(folder / f"{name}.pt")[:, 200:]
                assert narrow_BTV.dtype == torch.bfloat16
                assert float((narrow_BTV - exact_BTV).norm() / exact_BTV.norm()) < 0.02


THREE_HEADS = make_sizes(num_attention_heads=3, num_key_value_heads=3, head_dim=10)
LATENT = {
    "attn": LatentConfig(kv_rank=10, nope_dim=6, rope_dim=4, value_dim=5),
    "sizes": make_sizes(num_key_value_heads=4),
}


@pytest.mark.parametrize(
    ("key", "sites", "changes"),
    [
        ("model.token_shift=true", "qkvo", {"sizes": make_sizes(token_shift=True)}),
        ("model.num_attention_heads=3", "qkvo", {"sizes": THREE_HEADS}),
        ("pe.precision=bf16", "qkvo", {"precision": "bf16"}),
        ("attn.kind=linear", "qk", {"attn": LinearConfig()}),
        ("attn.kind=latent", "q", LATENT),
    ],
)
def test_a_model_without_a_class_is_refused(key: str, sites: str, changes: dict[str, Any]) -> None:
    with refused(key, "cannot be exported to transformers"):
        exported(opinionated(*sites, **changes))


def test_a_position_past_the_learned_ones_is_named() -> None:
    made = exported(decoder_of({}, {"input": "learned"}))
    with pytest.raises(ValueError, match="has 48 positions"):
        made(tokens(1, 49))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("pe", [{"bias": "alibi"}, {"own": "Forget"}, {"causal": False}], ids=str)
def test_a_kernel_that_takes_no_bias_is_refused(pe: dict[str, Any]) -> None:
    made = exported(decoder_of({}, pe))
    # With a mask of four dimensions, transformers compiles none of flex's.
    mask = torch.ones(1, 1, LENGTH, LENGTH, dtype=torch.bool)
    made.set_attn_implementation("flex_attention")
    with pytest.raises(ValueError, match="attn_implementation='flex_attention' takes no bias"):
        made(tokens(1, LENGTH), attention_mask=mask if pe.get("causal", True) else None)


@pytest.mark.parametrize(
    "line", ["from rope_exp import load_run, Position", "from rope_exp.decoder import Decoder"]
)
def test_a_file_that_needs_more_of_the_package_is_refused(line: str) -> None:
    made = with_text(make_pe(), "pull.Pull", f"{line}\n{PULL}")
    with refused("pe.code=pull.Pull", "cannot be exported to transformers"):
        exported(Decoder(Architecture(make_sizes(), made, VOCAB)))
