"""Tests of refusals of worlds that the config rules out; end_to_end/ tests several ranks."""

import os
import subprocess
import sys

import pytest
from support.configs import REPOSITORY


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
