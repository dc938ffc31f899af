"""Tests of stages of different lengths: their sizes, spelling, costs and refusals."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from support.refused import refused

from rope_exp.compose import resolve, run_config
from rope_exp.config import RunConfig
from rope_exp.costs import flops_per_token, operations
from rope_exp.sections import TrainConfig

# 6,144 tokens a step.
SIZES: dict[str, Any] = {"global_batch_size": 12, "seq_len": 512}


def make_train(*stages: tuple[int, ...], **changes: Any) -> TrainConfig:
    num_steps = sum(stage[1] for stage in stages)
    return TrainConfig(**{**SIZES, "num_steps": num_steps, "stages": stages, **changes})


lists = st.lists(
    st.tuples(st.sampled_from([64, 128, 256, 512]), st.integers(1, 9))
    | st.tuples(st.integers(1, 99), st.integers(1, 9), st.integers(1, 9)),
    min_size=1,
    max_size=5,
)


@given(lists)
def test_steps_and_tokens_add_up_one_by_one(stages: list[tuple[int, ...]]) -> None:
    train = make_train(*stages)
    of_steps = []
    for length, steps, *own in stages:
        of_steps += [(length, own[0] if own else 6144 // length)] * steps

    tokens = 0
    samples = 0
    for step, (length, rows) in enumerate(of_steps, start=1):
        stage = train.stage_at(step)
        assert stage.seq_len == length
        assert stage.batch_size == rows
        assert stage.samples(step) == range(samples, samples + rows)
        tokens += length * rows
        samples += rows
        assert train.tokens_until(step) == tokens
    assert train.tokens_until(0) == 0
    assert train.num_tokens == tokens


@given(lists)
def test_one_meaning_has_one_spelling(stages: list[tuple[int, ...]]) -> None:
    """Stages may be split, merged or written out: the config and its hash are the same."""
    train = make_train(*stages)
    longhand = []
    for length, steps, *own in stages:
        rows = own[0] if own else 6144 // length
        longhand += [(length, 1, rows)] * steps
    assert make_train(*longhand) == train
    assert make_train(*(train.stages or [(512, train.num_steps)])) == train


@given(st.integers(1, 500), st.integers(1, 60), st.integers(1, 600))
def test_micro_batches_have_as_many_tokens(share: int, micro: int, length: int) -> None:
    """A micro-batch has at most micro_batch_size x 512 tokens, or one row."""
    train = TrainConfig(**SIZES, micro_batch_size=micro)
    rows = train.rows_at_once(share, length)
    num_parts = -(-share // rows)
    assert 1 <= rows <= share
    assert rows * length <= max(micro * 512, length)
    # One part fewer would be too few.
    assert num_parts == 1 or share > (num_parts - 1) * max(1, micro * 512 // length)
    assert TrainConfig(**SIZES).rows_at_once(share, length) == share


def test_every_stage_divides_among_the_processes() -> None:
    words = ["train.stages=[[256,490],[1024,10]]", "launch.device=cpu"]
    assert resolve(run_config([*words, "launch.num_processes=4"])).launch.num_processes == 4
    with refused("train.stages=", "4 sequences of 1024", "multiple of the 8 processes"):
        resolve(run_config([*words, "launch.num_processes=8"]))


def test_positions_reach_as_far_as_the_longest_stage() -> None:
    config = run_config(["train.stages=[[256,490],[1024,10]]", "pe.input=learned"])
    assert config.train.longest == 1024
    assert config.architecture(2048).num_positions == 1024
    assert RunConfig.from_dict(config.to_dict()) == config


def test_operations_are_counted_stage_by_stage() -> None:
    config = resolve(run_config(["train.stages=[[256,400],[1024,100]]", "launch.device=cpu"]))
    short = run_config(["train.num_steps=400"])
    long = run_config(["train.num_steps=100", "train.seq_len=1024", "train.global_batch_size=4"])
    assert operations(config) == operations(short) + operations(long)
    assert flops_per_token(config, 2048, 1024) == flops_per_token(long, 2048)
    assert flops_per_token(config, 2048) == flops_per_token(short, 2048)
