"""Tests that files written by version 0.2.0 stay readable and keep their identity."""

import json
import platform
import random
import shutil
from pathlib import Path

import pytest
from support.configs import RECORDED, REPOSITORY

from rope_exp import load_run, load_runs
from rope_exp.batches import chain_sha256, held_out_rows, training_batch
from rope_exp.campaign.records import read_records
from rope_exp.commands.report import write
from rope_exp.decoder import held_out_loss
from rope_exp.folder import read_config
from rope_exp.prepare import open_data

STORED = REPOSITORY / "tests/stored/run_0.2.0"


@pytest.mark.skipif(platform.python_version() != "3.11.7", reason="its library is the corpus")
def test_the_library_is_read_as_it_was(tmp_path: Path) -> None:
    """The stdlib corpus gives the same blocks and, at seed 0, the same tokens in the same order."""
    [run] = [run for run in read_records(RECORDED, "table") if run.where == "table/qk_rope-s0"]
    config = run.config.replace("data", cache_dir=str(tmp_path))
    data = open_data(config.data, config.tokenizer, seq_len=config.train.seq_len)
    assert data.data_sha256 == run.result["data_sha256"]
    assert data.data_sha256.startswith("96b62413d578")

    order = ""
    for step in range(1, config.train.num_steps + 1):
        order = chain_sha256(order, training_batch(config, data, step).hashed_BS)
    assert order == run.result["order_sha256"]
    assert order.startswith("2f6ca7d4")


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write the corpus that the stored run read, at the path that its config names."""
    monkeypatch.chdir(tmp_path)
    draw = random.Random(0).randrange
    lines = []
    for _ in range(600):
        a, b = draw(100), draw(100)
        lines.append(f"The sum of {a} and {b} is {a + b}. Their difference is {a - b}.\n")
    Path("corpus").mkdir()
    Path("corpus/sums.txt").write_text("".join(lines), encoding="utf-8")


def test_a_stored_run_has_its_loss(corpus: None) -> None:
    """The stored weights give the recorded loss on text that is prepared again."""
    result = json.loads((STORED / "result.json").read_text(encoding="utf-8"))
    config = read_config(STORED)
    data = open_data(config.data, config.tokenizer, seq_len=config.train.seq_len)
    assert data.data_sha256 == result["data_sha256"]

    model, _ = load_run(STORED)
    loss = held_out_loss(model, held_out_rows(config, data), micro_batch_size=4)
    assert loss == pytest.approx(result["val/loss"], abs=1e-5)


def test_stored_runs_are_reported(tmp_path: Path) -> None:
    shutil.copytree(STORED, tmp_path / "runs/old/qkvo_rope/seed0")
    lines = write(tmp_path / "runs", "old", tmp_path / "out")
    assert "QKVO-RoPE" in lines[0]
    assert (tmp_path / "out/table.csv").exists()
    assert "4.4763" in (tmp_path / "out/report.html").read_text(encoding="utf-8")

    frame = load_runs(tmp_path / "runs")
    assert frame["val/loss"].to_list() == [pytest.approx(4.4763, abs=1e-4)]
