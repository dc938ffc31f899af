"""What a rank sets up before it trains: its memory, Python's collector, and what it says of itself."""

import gc
import subprocess
import sys

import pytest

from rope_exp.config.compose import run_config
from rope_exp.config.resolve import settle
from rope_exp.training.trainer import _frozen_heap
from rope_exp.training.worker import _described

FAULTS = """
import resource, sys
import torch
from rope_exp.training.worker import _keep_memory
if sys.argv[1] == "kept":
    _keep_memory()
for round in range(10):
    torch.ones(2**24)  # 64 MiB, freed at once
    if round == 4:  # until the heap is as large as it gets
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's allocator")
def test_memory_that_a_step_freed_is_used_again_and_not_fetched_anew() -> None:
    faults = {
        how: int(
            subprocess.run(
                [sys.executable, "-c", FAULTS, how], check=True, capture_output=True, text=True
            ).stdout
        )
        for how in ("kept", "given back")
    }
    assert faults["given back"] > 1000
    assert faults["kept"] < faults["given back"] / 4


def test_objects_that_stand_are_left_alone_by_the_collector_while_a_run_lasts() -> None:
    with _frozen_heap():
        assert gc.get_freeze_count() > 1000
    assert gc.get_freeze_count() == 0


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (
            ["train.num_steps=20"],
            "not compiled: it pays back from 5e+12 operations on, and this run takes 5.9e+11",
        ),
        (["train.compile=true"], "compiled"),
        (["train.compile=false"], "not compiled"),
    ],
)
def test_a_run_says_why_it_is_not_compiled(overrides: list[str], said: str) -> None:
    config = settle(run_config(["launch.device=cpu", "train.precision=fp32", *overrides]))
    assert _described(config) == f"fp32 on cpu, {said}"
