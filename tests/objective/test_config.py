"""Tests of the objective mlm: the mask's id, its place in all counts, and refusals."""

from collections.abc import Sequence

import pytest
import torch
from support.models import VOCAB, make_pe, make_sizes, tokens
from support.refused import refused
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from rope_exp.campaign.file import CampaignFile, Entry, read_campaign
from rope_exp.compose import compose_jobs, run_config
from rope_exp.config import RunConfig
from rope_exp.costs import checkpoint_bytes, flops_per_token, num_parameters
from rope_exp.decoder import Decoder
from rope_exp.plan import tables as plan
from rope_exp.sections import TrainConfig
from rope_exp.settle import resolve

MLM = "train.objective=mlm"


def test_the_mask_is_one_id_past_the_tokenizers() -> None:
    causal = run_config([]).architecture(2048)
    mlm = run_config([MLM]).architecture(2048)
    assert (causal.vocab_size, causal.causal) == (2048, True)
    assert (mlm.vocab_size, mlm.causal) == (2049, False)
    # The mask adds a row to the embedding and one to the head.
    assert num_parameters(mlm) - num_parameters(causal) == 2 * 128


def test_all_that_is_counted_counts_the_mask() -> None:
    """The matched width and the size of a checkpoint include the mask."""
    matched = run_config([MLM, "model.match_params=1500000"])
    count = num_parameters(matched.architecture(2048))
    assert abs(count - 1_500_000) <= 1500

    causal = resolve(run_config(["launch.device=cpu"]))
    mlm = resolve(run_config([MLM, "launch.device=cpu"]))
    assert checkpoint_bytes(mlm, 2048) - checkpoint_bytes(causal, 2048) == 12 * 2 * 128


def test_a_plan_says_what_attention_and_vocabulary_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "matmul_flops_per_s", lambda: 1e11)
    lines = plan.cost_lines(resolve(run_config([MLM, "launch.device=cpu"])))
    assert "attention    softmax, both ways" in lines
    assert any("vocabulary 2,049" in line for line in lines)


def test_a_share_of_each_sequence_is_predicted() -> None:
    """mlm predicts 15 % of a sequence, rounded, at least one token; causal training, all."""
    mlm = run_config([MLM])
    assert [mlm.num_predicted(length) for length in (1, 3, 7, 16, 256, 512)] == [
        1, 1, 1, 2, 38, 77,
    ]  # fmt: skip
    assert run_config([]).num_predicted(256) == 256


def test_counted_operations_are_those_that_torch_does() -> None:
    """Each query attends to T keys, and the head acts only at the predicted places."""
    length = 32
    train = TrainConfig(seq_len=length, objective="mlm")
    sizes = make_sizes(num_key_value_heads=4)
    config = RunConfig(pe=make_pe("q", "k"), model=sizes, train=train)
    decoder = Decoder(config.architecture(VOCAB))
    ids_BT = tokens(1, length)
    place_BP = torch.arange(config.num_predicted(length))[None]

    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        decoder(ids_BT, ids_BT[:, : place_BP.shape[1]], predicted_BP=place_BP).backward()
    # flops_per_token is rounded down to a whole number.
    assert counter.get_total_flops() // length == flops_per_token(config, VOCAB)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["attn=linear"], "train.objective=mlm: looks both ways, and the state that attn"),
        (["attn=retention"], "attn.kind=retention keeps goes one way alone"),
        (["attn=decay", "pe=vo_rope"], "attn.kind=decay keeps"),
        (["model.window=8"], "model.window=8: is of the keys before a query"),
        (
            ["model.token_shift=true"],
            "model.token_shift=true: mixes in the token before, and train.objective=mlm looks both "
            "ways; train.objective=causal does not, and here leave false",
        ),
        (["data=copy"], "train.objective=mlm: must be causal for data=copy"),
    ],
)  # fmt: skip
def test_what_looks_one_way_is_refused(words: list[str], sentence: str) -> None:
    with refused(sentence):
        run_config([MLM, *words])


def test_a_token_shift_is_refused_beside_real_numbers() -> None:
    with refused("model.token_shift=true", "train.objective=regression looks both ways"):
        run_config(["+experiment=spikes", "model.token_shift=true"])


@pytest.mark.parametrize("attn", ["softmax", "mla", "mla_vo", "shared_s1", "shared_s2"])
def test_kinds_that_keep_keys_look_both_ways(attn: str) -> None:
    assert not run_config([MLM, f"attn={attn}", "model=sequel_mini"]).causal


def test_the_experiment_is_of_the_objective() -> None:
    configs = compose_jobs(["+experiment=mlm", "pe=nope,vo_rope", "seed=0"]).configs
    assert {config.train.objective for config in configs} == {"mlm"}
    assert len({config.group_sha256 for config in configs}) == 1


def blocks(file: CampaignFile, entries: Sequence[Entry]) -> set[tuple[str, int]]:
    """Return the rows and seeds of some of a campaign's entries."""
    found = set()
    for entry in entries:
        for cell in entry.cells(file.rows):
            found.add((cell["row"].value(), cell["seed"].value()))
    return found


def test_the_campaign_differs_from_its_base_in_the_objective() -> None:
    """Each run then has a counterpart of causal training, with the same row and seed."""
    mlm, english, steady = (read_campaign(name, None) for name in ("mlm", "english", "warmup"))
    assert mlm.fixed == [*english.fixed, MLM]
    assert steady.fixed == [*english.fixed, "schedule.warmup_fraction=0.2"]
    assert mlm.rows == english.rows == steady.rows

    *of_short, of_long, of_more, of_two = mlm.cells
    assert of_long.sweep == "seed=0,1,2 schedule.warmup_fraction=0.2"
    assert of_more.sweep == "seed=0 train.num_steps=2000"
    assert of_two.sweep == "row=qk_rope,qkvo_rope seed=1,2 train.num_steps=2000"
    for entries, base in ((of_short, english), ([of_long], steady)):
        assert blocks(mlm, entries) <= blocks(base, base.cells)
