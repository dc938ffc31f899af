"""Tests of a process that a launcher starts as a rank, and of environments that are refused."""

from pathlib import Path

import pytest
from support.command import assert_refused, command
from support.refused import refused

from rope_exp.ranks import check_ranks


@pytest.mark.parametrize(
    ("variables", "sentence"),
    [
        ("RANK=x", "RANK=x: must be a number below WORLD_SIZE=1"),
        ("RANK=1", "RANK=1: must be a number below WORLD_SIZE=1"),
        ("WORLD_SIZE=2", "RANK: a launcher sets it beside WORLD_SIZE"),
        ("RANK=0 WORLD_SIZE=2 MASTER_ADDR=localhost", "MASTER_PORT: "),
        (
            "ACCELERATE_MIXED_PRECISION=no MASTER_ADDR=127.0.0.1",
            "accelerate launch --num_processes: asked for several processes, and one was started",
        ),
        ("ACCELERATE_USE_FSDP=true", "ACCELERATE_USE_FSDP=true: is not followed"),
    ],
)
def test_a_rank_that_no_launcher_sets_is_refused(
    monkeypatch: pytest.MonkeyPatch, variables: str, sentence: str
) -> None:
    for variable in variables.split():
        monkeypatch.setenv(*variable.split("="))
    with refused(sentence):
        check_ranks()


PRECISION = "ACCELERATE_MIXED_PRECISION"


@pytest.mark.parametrize(
    ("words", "variable", "sentence"),
    [
        ("seed=1", "RANK=x", "RANK=x"),
        ("launch.num_processes=2", f"{PRECISION}=no", "=2: but this launcher started 1"),
        ("", f"{PRECISION}=fp16", f"{PRECISION}=fp16: is not followed: train.precision=fp32"),
        # Otherwise every rank would run the whole sweep.
        ("-m pe=glob(*)", f"{PRECISION}=no", "every rank of `accelerate launch` would run the"),
    ],
)
def test_a_command_under_such_a_launcher_exits_with_2(
    tmp_path: Path, tiny_overrides: list[str], words: str, variable: str, sentence: str
) -> None:
    environment = dict([variable.split("=")])
    done = command(*tiny_overrides, *words.split(), cwd=tmp_path, **environment)
    assert_refused(done, sentence)
    assert list(tmp_path.iterdir()) == []
