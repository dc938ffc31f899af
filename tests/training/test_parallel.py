"""Tests of a run's ranks: their collectives, and refusals of worlds that the config rules out."""

import json
import os
import subprocess
import sys

import pytest
from support.configs import REPOSITORY

RANKS = """
import contextlib, json, sys
import torch
from rope_exp.parallel import Parallel
parallel = Parallel("cpu", "fp32", 2)
model = torch.nn.Linear(1, 1, bias=False)
wrapped = parallel.prepare(model)
gradients = []
for last in (False, True):
    with parallel.accumulate(wrapped, last=last):
        wrapped(torch.full((1, 1), parallel.rank + 1.0)).sum().backward()
    gradients.append(float(model.weight.grad))
said = {
    "rank": parallel.rank,
    "world_size": parallel.world_size,
    "is_main": parallel.is_main,
    "sum": float(parallel.sum(torch.tensor(parallel.rank + 1.0))),
    "any": [parallel.any(parallel.rank == rank) for rank in (0, 1, 2)],
    "gather": parallel.gather({"rank": parallel.rank}),
    "gradients": gradients,
    "facts": parallel.facts(),
}
del wrapped
parallel.wait()
parallel.end()
print(json.dumps(said))
"""


def test_two_ranks_agree_sum_gather_and_average() -> None:
    """Only the last backward pass averages gradients over the ranks, including earlier passes.

    Each pass of rank r has the gradient r + 1: 1 and 2 after the first, 3 on both after the last.
    """
    shared = os.environ | {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29577"}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANKS],
            env=shared | {"RANK": str(rank), "LOCAL_RANK": str(rank), "OMP_NUM_THREADS": "1"},
            cwd=REPOSITORY,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in (0, 1)
    ]
    said = [json.loads(rank.communicate(timeout=120)[0]) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0]
    for rank, words in enumerate(said):
        assert (words["rank"], words["world_size"], words["is_main"]) == (rank, 2, rank == 0)
        assert words["sum"] == 3.0
        assert words["any"] == [True, True, False]
        assert words["gather"] == [{"rank": 0}, {"rank": 1}]
        assert words["gradients"] == [rank + 1.0, 3.0]
        assert words["facts"]["distributed_type"] == "MULTI_CPU"


@pytest.mark.parametrize(
    ("call", "environment", "words"),
    [
        (
            "Parallel('cuda', 'bf16', 1)",
            {},
            "launch.device=cuda: torch finds no such device here, and gives cpu",
        ),
        (
            "Parallel('cpu', 'fp32', 1)",
            {"ACCELERATE_DYNAMO_BACKEND": "inductor"},
            "ACCELERATE_DYNAMO_BACKEND=INDUCTOR: must be unset",
        ),
    ],
)
def test_another_world_than_asked_for_is_refused(
    call: str, environment: dict[str, str], words: str
) -> None:
    """A new process is needed, as accelerate reads its environment once; -O removes asserts."""
    script = f"from rope_exp.parallel import Parallel; {call}"
    done = subprocess.run(
        [sys.executable, "-O", "-c", script],
        env=os.environ | {"CUDA_VISIBLE_DEVICES": ""} | environment,
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
    )
    assert f"ConfigError: {words}" in done.stderr
