"""A process that a launcher started as a rank, and environments that no launcher sets."""

from pathlib import Path

import pytest
from support.command import assert_refused, command
from support.refused import refused

from rope_exp.launch.as_rank import check_ranks

RANKS = [
    ({"RANK": "x"}, "RANK=x: "),
    ({"RANK": "-1"}, "RANK=-1: "),
    ({"RANK": ""}, "RANK=: "),
    ({"RANK": "0", "WORLD_SIZE": "0"}, "RANK=0: must be below WORLD_SIZE=0"),
    ({"RANK": "0", "WORLD_SIZE": "9" * 5000}, "WORLD_SIZE=9"),
    ({"RANK": "2", "WORLD_SIZE": "2"}, "RANK=2: must be below WORLD_SIZE=2"),
    ({"RANK": "1"}, "RANK=1: must be below WORLD_SIZE=1"),
    ({"RANK": "0", "LOCAL_RANK": "y"}, "LOCAL_RANK=y: "),
    ({"WORLD_SIZE": "2"}, "RANK: a launcher sets it beside WORLD_SIZE"),
    ({"RANK": "0", "WORLD_SIZE": "2"}, "MASTER_ADDR: "),
    ({"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost"}, "MASTER_PORT: "),
]


@pytest.mark.parametrize(
    ("environment", "sentence"), RANKS, ids=[str(case[0])[:40] for case in RANKS]
)
def test_a_rank_that_no_launcher_sets_is_refused(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], sentence: str
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with refused(sentence):
        check_ranks()


def test_a_garbled_rank_exits_with_2(tmp_path: Path) -> None:
    assert_refused(command("seed=1", cwd=tmp_path, RANK="x"), "RANK=x")
    assert list(tmp_path.iterdir()) == []


def test_a_sweep_under_a_launcher_is_refused(tmp_path: Path) -> None:
    """Every rank would run the whole sweep."""
    done = command("-m", "pe=glob(*)", cwd=tmp_path, ACCELERATE_MIXED_PRECISION="no")
    assert_refused(done, "every rank of `accelerate launch` would run the sweep")
    assert list(tmp_path.iterdir()) == []
