"""Tests of a process that a launcher starts as a rank, and of environments that are refused."""

from collections.abc import Callable
from pathlib import Path

import pytest
from support.command import assert_refused, command
from support.refused import refused

from rope_exp.commands._rank import check_ranks, run_as_rank
from rope_exp.config import RunConfig

ACCELERATE = "ACCELERATE_MIXED_PRECISION=no"


@pytest.mark.parametrize(
    ("variables", "sentence"),
    [
        ("RANK=x", "RANK=x: must be a number below WORLD_SIZE=1"),
        ("RANK=1", "RANK=1: must be a number below WORLD_SIZE=1"),
        ("WORLD_SIZE=2", "RANK: a launcher sets it beside WORLD_SIZE"),
        ("RANK=0 WORLD_SIZE=2 MASTER_ADDR=localhost", "MASTER_PORT: "),
        ("RANK=0 WORLD_SIZE=2 MASTER_ADDR=localhost MASTER_PORT=abc", "MASTER_PORT=abc: must be"),
        ("RANK=0 WORLD_SIZE=2 MASTER_ADDR=localhost MASTER_PORT=65536", "MASTER_PORT=65536: must"),
        ("LOCAL_WORLD_SIZE=two", "LOCAL_WORLD_SIZE=two: must be a number"),
        (f"{ACCELERATE} MASTER_ADDR=127.0.0.1", "asked for several processes, and one was started"),
        ("ACCELERATE_GRADIENT_ACCUMULATION_STEPS=4", "=4: must be 1: train.micro_batch_size"),
    ],
)
def test_a_rank_that_no_launcher_sets_is_refused(
    monkeypatch: pytest.MonkeyPatch, variables: str, sentence: str
) -> None:
    for variable in variables.split():
        monkeypatch.setenv(*variable.split("="))
    with refused(sentence):
        check_ranks()


def test_a_number_of_processes_that_no_launcher_started_is_refused(
    tiny: Callable[..., RunConfig],
) -> None:
    with refused("launch.num_processes=2: but this launcher started 1"):
        run_as_rank(tiny("launch.num_processes=2"))


def test_a_sweep_under_such_a_launcher_exits_with_2(
    tmp_path: Path, tiny_overrides: list[str]
) -> None:
    """Otherwise every rank would run the whole sweep."""
    environment = dict([ACCELERATE.split("=")])
    done = command(*tiny_overrides, "-m", "pe=nope,vo_rope", cwd=tmp_path, **environment)
    assert_refused(done, "ACCELERATE_MIXED_PRECISION=no: is set, as by `accelerate launch`")
    assert list(tmp_path.iterdir()) == []
