"""Whole runs on a damaged corpus: they end before the damage is trained or evaluated on."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support.configs import REPOSITORY

from rope_exp.config.compose import run_config
from rope_exp.data.batches import Batches
from rope_exp.data.prepare import prepare
from rope_exp.data.store import BLOCK_BYTES
from rope_exp.run.metrics import read_metrics
from rope_exp.system.files import read_json

CLOCK = {"tokens_per_s", "elapsed_s", "mfu"}


@pytest.fixture(scope="module")
def long_corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("long")
    for number in range(30):
        text = " ".join(str(number * place % 7919) for place in range(6000))
        (folder / f"{number}.txt").write_text(text)
    return folder


def train(overrides: list[str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "train.py", *overrides, "train.compile=false", "launch.device=cpu"]
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=120)


def without_times(folder: Path) -> list[dict[str, object]]:
    rows = []
    for row in read_metrics(folder):
        rows.append({key: row[key] for key in row.keys() - CLOCK})
    return rows


def flip(path: Path, block: int) -> None:
    with path.open("r+b") as file:
        file.seek(block * BLOCK_BYTES + 1)
        [byte] = file.read(1)
        file.seek(-1, 1)
        file.write(bytes([byte ^ 1]))


@pytest.mark.parametrize("num_processes", [1, pytest.param(2, marks=pytest.mark.torture)])
def test_a_run_ends_before_a_damaged_step(
    tiny_overrides: list[str], long_corpus: Path, tmp_path: Path, num_processes: int
) -> None:
    """And goes on to the same numbers once the bytes are back."""
    corpus = [f"data.path={long_corpus}", f"data.cache_dir={tmp_path / 'cache'}"]
    overrides = [*tiny_overrides, *corpus, f"launch.num_processes={num_processes}"]
    undisturbed = train([*overrides, f"run.dir={tmp_path / 'whole'}"])
    assert undisturbed.returncode == 0, undisturbed.stderr

    [meta] = (tmp_path / "cache").glob("*/meta.json")
    path = meta.with_name("train.bin")
    config = run_config(overrides)
    places = np.arange(path.stat().st_size // 2)
    batches = Batches(places, seed=config.order_seed, batch_size=4, seq_len=16)
    blocks = [set((2 * batches.ids(step).ravel() // BLOCK_BYTES).tolist()) for step in range(1, 5)]
    block = min(blocks[3] - set().union(*blocks[:3]))  # first touched at step 4

    flip(path, block)
    stopped = train(overrides)
    assert stopped.returncode == 1, stopped.stderr
    errors = [line for line in stopped.stderr.splitlines() if "error:" in line]
    start = block * BLOCK_BYTES
    stop = min(start + BLOCK_BYTES, path.stat().st_size)
    damage = f"error: {path} is damaged in bytes {start:,} to {stop:,}"
    assert set(errors) == {f"{damage}; remove {path.parent} and prepare again"}
    assert "Traceback" not in stopped.stderr
    assert [row["step"] for row in read_metrics(config.folder)] == [1, 2, 3]
    assert not (config.folder / "result.json").exists()

    flip(path, block)
    again = train(overrides)
    assert again.returncode == 0, again.stderr
    assert without_times(config.folder) == without_times(tmp_path / "whole")
    results = [read_json(folder / "result.json") for folder in (config.folder, tmp_path / "whole")]
    for key in ("val/loss", "order_sha256", "data_sha256", "init_sha256"):
        assert results[0][key] == results[1][key]


def test_a_damaged_held_out_block_ends_the_run_at_its_start(
    tiny_overrides: list[str], long_corpus: Path, tmp_path: Path
) -> None:
    corpus = [f"data.path={long_corpus}", f"data.cache_dir={tmp_path / 'cache'}"]
    overrides = [*tiny_overrides, *corpus]
    config = run_config(overrides)
    prepared = prepare(config.data, config.tokenizer)
    flip(prepared.folder / "validation.bin", 0)
    stopped = train(overrides)
    assert stopped.returncode == 1
    assert f"error: {prepared.folder / 'validation.bin'} is damaged in bytes 0 to" in stopped.stderr
    assert "Traceback" not in stopped.stderr
    assert read_metrics(config.folder) == []
