"""Tests of runs on generated data, from their words to what they generate."""

from pathlib import Path

import pytest
import torch
from support.refused import refused
from support.trainers import build_trainer

from rope_exp import load_run
from rope_exp.commands.generate import main as generate
from rope_exp.commands.prepare import main as prepare
from rope_exp.compose import finalise, run_config
from rope_exp.errors import ConfigError
from rope_exp.files import read_json
from rope_exp.folder import read_metrics, read_run
from rope_exp.laws import certificate
from rope_exp.sweep import admit
from rope_exp.worker import record_start

SMALL = """
model.hidden_size=32 model.intermediate_size=64 model.num_hidden_layers=2 pe=qkvo_rope
train.num_steps=40 train.global_batch_size=4 train.precision=fp32 train.log_every=1
train.eval_every=20 train.eval_sequences=4 train.save_every=10
"""
TASKS = {
    "addition": "data=addition train.seq_len=64 train.probes=[answers]",
    "spikes": "data=spikes train.seq_len=200 train.probes=[fit] pe.fraction=0.5 pe.base=40000",
}


@pytest.fixture(scope="module", params=TASKS)
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp(request.param)
    words = [*SMALL.split(), *TASKS[request.param].split(), f"run.dir={folder / 'run'}"]
    config = run_config([*words, "launch.device=cpu"])
    [run] = admit([finalise(config)])
    trainer = build_trainer(run.config, run.folder)
    record_start(trainer, certificate(config.model, config.pe, config.attn, causal=config.causal))
    assert trainer.train() == "finished"
    return run.folder


def test_it_learns_and_is_opened(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Spikes have two numbers per position, and no text to generate."""
    rows = read_metrics(trained)
    assert rows[-1]["train/loss"] < rows[0]["train/loss"]
    run = read_run(trained)
    assert run.status == "finished"
    assert list(read_json(trained / "probes.json")) == list(run.config.train.probes)
    assert run.env["certificate"]["measured"] == "invariant"

    model, tokenizer = load_run(trained)
    if run.config.data.kind == "spikes":
        ids_BT = torch.tensor([tokenizer.encode("unit03 unit11 query").ids])
        times_BT = torch.tensor([[0.1, 0.25, 0.2]]) * 2 * torch.pi / 1e-4
        assert model(ids_BT, position_BT=times_BT).shape == (1, 3, 2)
        with refused("data=spikes, in which no token ends a text", by=ConfigError):
            generate([str(trained), "unit03"])
    else:
        assert model(torch.tensor([tokenizer.encode("12+34=").ids])).shape == (1, 6, 14)
        assert generate([str(trained), "12+34=", "--tokens", "4", "--temperature", "0"]) == 0
        assert capsys.readouterr().out.startswith("12+34=")
        with refused("TEXT", "tokens alone: +0123456789;=_", by=ConfigError):
            generate([str(trained), "12 + 34 ="])
        with refused("TEXT='caf\\udce9': is no UTF-8", by=ConfigError):
            generate([str(trained), "caf\udce9"])


def test_there_is_nothing_to_prepare(capsys: pytest.CaptureFixture[str]) -> None:
    assert prepare(["data=copy"]) == 0
    assert "generated as it is read" in capsys.readouterr().out
