"""Tests that a run on a damaged corpus ends before it trains or evaluates."""

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from support.configs import REPOSITORY

from rope_exp.data.prepare import prepare
from rope_exp.plan.compose import run_config
from rope_exp.run.metrics import read_metrics


@pytest.mark.parametrize("side", ["train", pytest.param("validation", marks=pytest.mark.torture)])
def test_a_damaged_corpus_ends_the_run_at_its_start(
    tiny_overrides: list[str], tmp_path: Path, side: str
) -> None:
    """The same command succeeds once the bytes are restored."""
    overrides = [*tiny_overrides, f"data.cache_dir={tmp_path / 'cache'}"]
    config = run_config(overrides)
    prepared = prepare(config.data, config.tokenizer)
    path = prepared.folder / f"{side}.bin"
    content = path.read_bytes()
    place = random.Random(0).randrange(len(content))
    path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])

    stopped = train(overrides)
    assert stopped.returncode == 1, stopped.stderr
    remedy = "its files are not those that were prepared; remove it and prepare again"
    assert f"error: {prepared.folder} is damaged: {remedy}" in stopped.stderr
    assert "Traceback" not in stopped.stderr
    assert read_metrics(config.folder) == []

    path.write_bytes(content)
    assert train(overrides).returncode == 0


def train(overrides: list[str]) -> subprocess.CompletedProcess[str]:
    options = ["train.compile=false", "train.precision=fp32", "launch.device=cpu"]
    return subprocess.run(
        [sys.executable, "train.py", *overrides, *options],
        cwd=REPOSITORY,
        env=os.environ,
        capture_output=True,
        text=True,
        timeout=300,
    )
