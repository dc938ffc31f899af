"""Tests of refusals of worlds that the config rules out; end_to_end/ tests several ranks."""

import os
import subprocess
import sys

import pytest
from support.configs import REPOSITORY


@pytest.mark.parametrize(
    ("arguments", "backend", "words"),
    [
        ("'cuda', 'bf16', 1", "no", "launch.device=cuda: torch finds no such device here"),
        ("'cpu', 'fp32', 1", "inductor", "ACCELERATE_DYNAMO_BACKEND=INDUCTOR: must be unset"),
    ],
)
def test_another_world_than_asked_for_is_refused(arguments: str, backend: str, words: str) -> None:
    """A new process is needed, as accelerate reads its environment once; -O removes asserts."""
    script = f"from rope_exp.parallel import Parallel; Parallel({arguments})"
    changes = {"CUDA_VISIBLE_DEVICES": "", "ACCELERATE_DYNAMO_BACKEND": backend}
    done = subprocess.run(
        [sys.executable, "-O", "-c", script],
        env=os.environ | changes,
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
    )
    assert f"ConfigError: {words}" in done.stderr
