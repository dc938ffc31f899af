"""The decoder against mathematics: an O(n^2) float64 sum for every subset, transformers' LLaMA for QK, causality."""

import itertools
import math

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from rope_exp.config.compose import run_config
from rope_exp.config.costs import attention_flops_per_token, matmul_flops_per_token, num_parameters
from rope_exp.config.sections import Architecture, ModelConfig
from rope_exp.config.variants import PeConfig
from rope_exp.model.decoder import Decoder, weights, weights_sha256
from rope_exp.model.laws import certificate, expected_class
from rope_exp.model.layers import Attention
from rope_exp.model.rope import angles, frequencies
from rope_exp.system.errors import LawError

SIZES = ModelConfig("test", 32, 48, 2, 4, 2, 1e-5, False)  # grouped: two query heads a key head
VOCAB = 61
SUBSETS = [subset for size in range(5) for subset in itertools.combinations("qkvo", size)]


def pe(*rotate: str, **changes: object) -> PeConfig:
    values: dict[str, object] = {
        "name": "test", "rotate": rotate, "base": 100.0, "fraction": 1.0, "trainable": False, "start": 0
    }  # fmt: skip
    return PeConfig(**(values | changes))  # type: ignore[arg-type]


def tokens(*shape: int, seed: int = 0) -> Tensor:
    return torch.randint(0, VOCAB, shape, generator=torch.Generator().manual_seed(seed))


def decoder(*rotate: str, seed: int = 0, sizes: ModelConfig = SIZES, **changes: object) -> Decoder:
    model = Decoder(Architecture(sizes, pe(*rotate, **changes), VOCAB))
    model.initialise(seed)
    return model


def rotation_matrix(position: int, dim: int, base: float) -> Tensor:
    """R_m as a dense matrix, written out pair by pair."""
    matrix = torch.zeros(dim, dim, dtype=torch.float64)
    for f in range(dim // 2):
        angle = position * base ** (-2 * f / dim)
        matrix[f, f] = matrix[f + dim // 2, f + dim // 2] = math.cos(angle)
        matrix[f, f + dim // 2], matrix[f + dim // 2, f] = -math.sin(angle), math.sin(angle)
    return matrix


def direct_attention(
    attention: Attention, x_TD: Tensor, rotate: tuple[str, ...], base: float
) -> Tensor:
    """Attention as a sum over j <= i with explicit matrices: no tables, no SDPA, no shared heads trick."""
    num_positions, dim = x_TD.shape[0], attention.head_dim
    q, k, v = (
        (x_TD @ projection.weight.T).view(num_positions, -1, dim)
        for projection in (attention.q_proj, attention.k_proj, attention.v_proj)
    )
    group = q.shape[1] // k.shape[1]
    turn = [rotation_matrix(position, dim, base) for position in range(num_positions)]
    eye = torch.eye(dim, dtype=torch.float64)
    output = torch.zeros_like(q)
    for head in range(q.shape[1]):
        for i in range(num_positions):
            q_i = (turn[i] if "q" in rotate else eye) @ q[i, head]
            scores = torch.stack([
                q_i @ ((turn[j] if "k" in rotate else eye) @ k[j, head // group]) / math.sqrt(dim)
                for j in range(i + 1)
            ])  # fmt: skip
            a_i = torch.softmax(scores, dim=0)
            o_i = sum(
                a_i[j] * ((turn[j] if "v" in rotate else eye) @ v[j, head // group])
                for j in range(i + 1)
            )
            output[i, head] = (turn[i].T if "o" in rotate else eye) @ o_i
    return output.flatten(1) @ attention.o_proj.weight.T


@pytest.mark.parametrize("rotate", SUBSETS, ids="".join)
def test_every_subset_equals_the_direct_sum(rotate: tuple[str, ...]) -> None:
    attention = Attention(SIZES, rotate).double()
    x = torch.randn(9, 32, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    angle = angles(frequencies(SIZES.head_dim, 100.0, torch.float64), 9)
    with torch.no_grad():
        ours = attention(x[None], (angle.cos(), angle.sin()))[0]
        direct = direct_attention(attention, x, rotate, 100.0)
    assert float((ours - direct).abs().max()) < 1e-12


def test_vo_equals_the_sum_over_relative_rotations() -> None:
    # o_i = sum_j a_ij R_{j-i} v_j: Su 2025, the identity that makes VO-RoPE relative.
    attention = Attention(SIZES, ("v", "o")).double()
    x = torch.randn(8, 32, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    angle = angles(frequencies(SIZES.head_dim, 100.0, torch.float64), 8)
    with torch.no_grad():
        ours = attention(x[None], (angle.cos(), angle.sin()))[0]
        q, k, v = (
            (x @ p.weight.T).view(8, -1, 8)
            for p in (attention.q_proj, attention.k_proj, attention.v_proj)
        )
        out = torch.zeros(8, 4, 8, dtype=torch.float64)
        for head, i in itertools.product(range(4), range(8)):
            a = torch.softmax(k[: i + 1, head // 2] @ q[i, head] / math.sqrt(8), dim=0)
            out[i, head] = sum(
                a[j] * (rotation_matrix(j - i, 8, 100.0) @ v[j, head // 2]) for j in range(i + 1)
            )
        expected = out.flatten(1) @ attention.o_proj.weight.T
    assert float((ours - expected).abs().max()) < 1e-12


def test_vo_with_identity_attention_is_nope() -> None:
    # One position attends to itself alone: R_0 R_0^T = I wherever it stands.
    x = torch.randn(1, 1, 32, dtype=torch.float64)
    angle = angles(frequencies(8, 100.0, torch.float64), 1, 1234)
    rotated, plain = Attention(SIZES, ("v", "o")).double(), Attention(SIZES, ()).double()
    rotated.load_state_dict(plain.state_dict())
    tables = (angle.cos(), angle.sin())
    assert torch.allclose(rotated(x, tables), plain(x, tables), rtol=0, atol=1e-12)


def test_all_variants_agree_at_the_first_token_and_differ_after_it() -> None:
    ids = tokens(2, 6)
    logits = {subset: decoder(*subset)(ids) for subset in SUBSETS}
    for subset in SUBSETS:
        assert torch.allclose(logits[subset][:, 0], logits[()][:, 0], atol=1e-6)
    for left, right in itertools.combinations(SUBSETS, 2):
        assert not torch.allclose(logits[left][:, 1:], logits[right][:, 1:], atol=1e-6), (
            left,
            right,
        )


@pytest.mark.parametrize("rotate", SUBSETS, ids="".join)
def test_no_logit_depends_on_a_later_token(rotate: tuple[str, ...]) -> None:
    model, ids = decoder(*rotate), tokens(1, 8)
    changed = ids.clone()
    changed[:, 5:] = (changed[:, 5:] + 1) % VOCAB
    assert torch.equal(model(ids)[:, :5], model(changed)[:, :5])
    assert not torch.equal(model(ids)[:, 5:], model(changed)[:, 5:])


@pytest.mark.parametrize("rotate", SUBSETS, ids="".join)
@pytest.mark.parametrize(("fraction", "start"), [(1.0, 0), (0.5, 3)])
def test_each_subset_belongs_to_its_class(
    rotate: tuple[str, ...], fraction: float, start: int
) -> None:
    checked = certificate(SIZES, pe(*rotate, fraction=fraction, start=start))
    assert checked["measured"] == expected_class(rotate)


def test_the_certificate_refuses_an_output_that_turns_the_wrong_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def forward_only(x: Tensor, cos: Tensor, sin: Tensor, *, inverse: bool = False) -> Tensor:
        from rope_exp.model.rope import rotate

        return rotate(x, cos, sin)

    monkeypatch.setattr("rope_exp.model.layers.rotate", forward_only)
    with pytest.raises(LawError, match="refusing to train"):
        certificate(SIZES, pe("v", "o"))


def test_the_certificate_refuses_an_inverse_that_negates_the_cosine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def negated(x: Tensor, cos: Tensor, sin: Tensor, *, inverse: bool = False) -> Tensor:
        from rope_exp.model.rope import rotate

        return rotate(x, -cos, -sin) if inverse else rotate(x, cos, sin)

    monkeypatch.setattr("rope_exp.model.layers.rotate", negated)
    with pytest.raises(LawError, match="refusing to train"):
        certificate(SIZES, pe("v", "o"))


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("groups", [4, 2, 1])
def test_qk_is_llama_logits_gradients_and_checkpoint_both_ways(tied: bool, groups: int) -> None:
    sizes = ModelConfig("test", 64, 96, 3, 4, groups, 1e-5, tied)
    ours = Decoder(Architecture(sizes, pe("q", "k", base=10000.0), VOCAB))
    ours.initialise(0)
    theirs = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCAB,
            hidden_size=64,
            intermediate_size=96,
            num_hidden_layers=3,
            num_attention_heads=4,
            num_key_value_heads=groups,
            rms_norm_eps=1e-5,
            tie_word_embeddings=tied,
            attn_implementation="eager",
        )
    )
    theirs.load_state_dict(ours.state_dict())
    ids = tokens(2, 33)
    ours_logits, theirs_logits = ours(ids[:, :-1]), theirs(ids[:, :-1]).logits
    assert float((ours_logits - theirs_logits).detach().abs().max()) < 2e-5

    ours(ids[:, :-1], ids[:, 1:]).backward()
    torch.nn.functional.cross_entropy(
        theirs_logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="sum"
    ).backward()
    their_gradients = {name: parameter.grad for name, parameter in theirs.named_parameters()}
    for name, parameter in ours.named_parameters():
        expected = their_gradients[name]
        assert parameter.grad is not None
        assert expected is not None
        scale = float(expected.abs().max())
        assert float((parameter.grad - expected).abs().max()) < 1e-4 * max(scale, 1.0), name

    back = Decoder(Architecture(sizes, pe("q", "k", base=10000.0), VOCAB))
    back.load_state_dict(theirs.state_dict())
    assert weights_sha256(weights(back)) == weights_sha256(weights(ours))


def test_all_variants_of_a_seed_share_their_initial_weights_bit_for_bit() -> None:
    hashes = {weights_sha256(weights(decoder(*subset, seed=3))) for subset in SUBSETS}
    assert len(hashes) == 1
    assert hashes != {weights_sha256(weights(decoder(seed=4)))}


def test_the_hash_of_weights_sees_one_flipped_bit_and_a_renamed_tensor() -> None:
    tensors = {name: tensor.clone() for name, tensor in weights(decoder()).items()}
    before = weights_sha256(tensors)
    renamed = {
        ("x" + name if name == "lm_head.weight" else name): tensor
        for name, tensor in tensors.items()
    }
    assert weights_sha256(renamed) != before
    tensors["lm_head.weight"].view(torch.int32)[0, 0] ^= 1
    assert weights_sha256(tensors) != before


def test_initial_weights_have_the_stated_spread() -> None:
    model = Decoder(Architecture(ModelConfig("test", 256, 512, 8, 4, 4, 1e-5, False), pe(), 512))
    model.initialise(0)
    spread = {
        name: float(tensor.std()) for name, tensor in weights(model).items() if tensor.ndim == 2
    }
    for name, std in spread.items():
        residual = name.endswith(("o_proj.weight", "down_proj.weight"))
        assert math.isclose(std, 0.02 / math.sqrt(16) if residual else 0.02, rel_tol=0.03), name


def test_loss_is_the_summed_cross_entropy_of_the_logits() -> None:
    model, ids = decoder("q", "k"), tokens(3, 12)
    log_p = torch.log_softmax(model(ids[:, :-1]).double(), dim=-1)
    expected = -log_p.gather(-1, ids[:, 1:, None]).sum()
    assert math.isclose(model(ids[:, :-1], ids[:, 1:]).item(), expected.item(), rel_tol=1e-6)


def test_trainable_frequencies_learn_and_fixed_ones_are_not_stored() -> None:
    model, ids = decoder("q", "k", trainable=True), tokens(2, 9)
    model(ids[:, :-1], ids[:, 1:]).backward()
    gradient = model.model.rotary_emb.inv_freq.grad
    assert gradient is not None
    assert float(gradient.abs().max()) > 0
    assert not any("inv_freq" in name for name in decoder("q", "k").state_dict())


@pytest.mark.parametrize("size", ["nano", "10m", "30m", "60m", "125m", "350m", "1b", "sequel"])
def test_the_count_of_parameters_is_the_models_own(size: str) -> None:
    config = run_config([f"model={size}"])
    vocab_size = config.tokenizer.vocab_size
    assert vocab_size is not None
    with torch.device("meta"):
        model = Decoder(config.architecture(vocab_size))
    assert num_parameters(config.architecture(vocab_size)) == sum(
        p.numel() for p in model.parameters()
    )


def test_the_sequels_preset_has_its_931_million_parameters() -> None:
    config = run_config(["model=sequel"])
    assert round(num_parameters(config.architecture(80000)) / 1e6) == 931


@pytest.mark.parametrize("rotate", [(), ("q", "k"), ("q", "k", "v", "o")], ids="".join)
def test_counted_operations_are_those_that_torch_dispatches(rotate: tuple[str, ...]) -> None:
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    sizes, length = ModelConfig("test", 32, 48, 2, 4, 4, 1e-5, False), 32
    model = Decoder(Architecture(sizes, pe(*rotate), VOCAB))
    ids = tokens(1, length + 1)
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        model(ids[:, :-1], ids[:, 1:]).backward()
    # The dense math kernel multiplies the whole T x T square; we count the causal half, (T + 1)/2 of T keys.
    dense_attention = attention_flops_per_token(sizes, length) * 2 * length / (length + 1)
    assert counter.get_total_flops() == length * (
        matmul_flops_per_token(Architecture(sizes, pe(*rotate), VOCAB)) + dense_attention
    )
