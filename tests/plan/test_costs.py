"""Tests of estimated costs, against torch's own counts, and of matched parameters."""

import re
from pathlib import Path

import pytest
from support.command import command
from support.kinds import KINDS, subsets_of
from support.models import VOCAB, make_pe, make_sizes, tokens
from support.refused import refused
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from rope_exp.attn.decay import Config as DecayConfig
from rope_exp.attn.linear import Config as LinearConfig
from rope_exp.attn.retention import Config as RetentionConfig
from rope_exp.commands.plan import main as plan
from rope_exp.compose import compose_runs, resolve, run_config
from rope_exp.config import Architecture, RunConfig
from rope_exp.costs import (
    attention_flops_per_token,
    cost_lines,
    flops_per_token,
    num_parameters,
    operations,
    peak_flops_per_s,
    sweep_lines,
)
from rope_exp.decoder import Decoder
from rope_exp.sections import AttentionConfig, TrainConfig


@pytest.mark.parametrize("size", ["nano", "1b"])
def test_the_count_of_parameters_is_llamas(size: str) -> None:
    """The terms: embedding and head; per layer attention, SwiGLU and two norms; the last norm."""
    config = run_config([f"model={size}"])
    model = config.model
    width = model.hidden_size
    heads = 2 * (model.num_attention_heads + model.num_key_value_heads) * model.features_per_head
    a_layer = width * (heads + 3 * model.intermediate_size + 2)
    ends = 1 if model.tie_word_embeddings else 2
    expected = ends * 999 * width + model.num_hidden_layers * a_layer + width
    assert num_parameters(config.architecture(999)) == expected


@pytest.mark.parametrize("sites", [(), ("q", "k"), ("q", "k", "v", "o")], ids="".join)
@pytest.mark.parametrize("attn", [kind for kind in KINDS if kind.keeps_keys], ids=str)
def test_counted_operations_are_those_that_torch_does(
    sites: tuple[str, ...], attn: AttentionConfig
) -> None:
    """The dense kernel multiplies the whole T x T square; we count (T + 1)/2 of its T keys."""
    if sites not in subsets_of(attn):
        pytest.skip("this kind of attention does not rotate there")
    length = 32
    sizes = make_sizes(num_key_value_heads=4)
    architecture = Architecture(sizes, make_pe(*sites), VOCAB, attn)
    decoder = Decoder(architecture)
    ids_BT = tokens(1, length + 1)

    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        decoder(ids_BT[:, :-1], ids_BT[:, 1:]).backward()

    config = RunConfig(attn=attn, model=sizes, train=TrainConfig(seq_len=length))
    causal = attention_flops_per_token(config, length)
    in_weights = flops_per_token(config, architecture.vocab_size) - causal
    dense = causal * 2 * length / (length + 1)
    assert counter.get_total_flops() == length * (in_weights + dense)


# For four heads of 8 features: each number of a head's state is added to and read.
STATE_FLOPS = [
    (LinearConfig(), 3 * 4 * (2 + 2) * 8 * (8 + 1)),
    (LinearConfig(form="one_plus_cos"), 3 * 4 * (2 + 2) * (8 + 1) * (8 + 1)),
    (RetentionConfig(), 3 * 4 * (2 + 2) * 8 * 8),
    (DecayConfig(), 3 * 4 * (2 + 2) * 8),
]


@pytest.mark.parametrize(("attn", "expected"), STATE_FLOPS, ids=str)
def test_a_state_costs_the_same_at_any_length(attn: AttentionConfig, expected: int) -> None:
    sizes = make_sizes()
    for length in (1, 32, 4096):
        config = RunConfig(attn=attn, model=sizes, pe=make_pe())
        assert attention_flops_per_token(config, length) == sizes.num_hidden_layers * expected


def test_a_window_costs_the_keys_that_are_met() -> None:
    """The reference counts the keys position by position."""
    for length, window in ((32, 5), (5, 5), (4, 5), (1, 1)):
        met = sum(min(position + 1, window) for position in range(length))
        sizes = make_sizes(window=window)
        in_layer = 6 * sizes.hidden_size * 2 * met // length
        expected = sizes.num_hidden_layers * in_layer
        assert attention_flops_per_token(RunConfig(model=sizes), length) == expected


def test_looking_both_ways_costs_a_whole_row_of_keys() -> None:
    """A query takes 4 T K operations per head forward, and three times that with backward."""
    config = run_config(["data=spikes"])
    expected = 3 * 4 * 256 * config.model.hidden_size * config.model.num_hidden_layers
    assert attention_flops_per_token(config, 256) == expected


@pytest.mark.parametrize(
    ("device", "tflops"),
    [
        ("NVIDIA H100 80GB HBM3", 989.0),
        ("NVIDIA H100 PCIe", 756.0),
        ("NVIDIA L40S", 362.0),
        ("NVIDIA GeForce RTX 4090", 165.2),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None),
        ("Tesla T4", None),
    ],
)
def test_a_card_has_its_own_peak_or_none(device: str, tflops: float | None) -> None:
    """Another card's peak once gave an MFU of 104 %."""
    peak = peak_flops_per_s(device)
    assert peak == (None if tflops is None else pytest.approx(tflops * 1e12))


def test_parameters_operations_memory_and_time_are_printed(tmp_path: Path) -> None:
    done = command("model=sequel", "data=c4", script="plan", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "931,317,760 parameters" in done.stdout

    # 6 operations a weight and token over all but the embedding, and 6 L (T + 1) D in attention.
    weights = 931_317_760 - 80_000 * 2048 - 25 * 2048
    per_token = 6 * weights + 6 * 12 * 4097 * 2048
    assert f"{per_token:.3e} a token" in done.stdout
    assert re.search(r"about [\d.]+ GiB a process", done.stdout)
    times = re.findall(r"^time +\d+ days, [\d:]+ on one", done.stdout, re.MULTILINE)
    assert len(times) >= 3


def test_a_sweep_costs_what_its_runs_cost_together() -> None:
    words = ["launch.device=cpu", "model=nano,sequel_mini", "train.num_steps=60,120"]
    configs = [resolve(config) for config in compose_runs(words, multirun=True).configs]
    single = sum(operations(config) for config in configs)

    [said] = sweep_lines(configs)
    assert f"4 runs, of which the above is the first: {360 * 16 * 256:,} tokens" in said
    assert f"{single:.3e} operations" in said


def test_an_unknown_vocabulary_is_one_sentence() -> None:
    config = resolve(run_config(["tokenizer=pretrained", "tokenizer.path=owner/words"]))
    with refused("tokenizer=pretrained: its vocabulary is known once"):
        cost_lines(config)


def test_the_command_plans_a_sweep(capsys: pytest.CaptureFixture[str]) -> None:
    assert plan(["-m", "pe=nope,vo_rope"]) == 0
    assert "2 runs" in capsys.readouterr().out
    with refused("pe: several values make a sweep, which needs -m"):
        plan(["pe=nope,vo_rope"])


@pytest.mark.parametrize("words", [["attn=mla"], ["attn=shared_s2", "pe=qkvo_rope"], []])
def test_matched_parameters_are_met_before_anything_is_hashed(words: list[str]) -> None:
    wanted = 1_500_000
    config = run_config([*words, f"model.match_params={wanted}"])
    assert abs(num_parameters(config.architecture(2048)) - wanted) <= 0.001 * wanted

    width = config.model.intermediate_size
    spelled = run_config([*words, f"model.intermediate_size={width}"])
    assert config.config_sha256 == spelled.config_sha256
    assert RunConfig.from_dict(config.to_dict()) == config
