"""End-to-end tests of generated data, in real processes."""

from pathlib import Path

import pytest
import torch
from support.refused import refused
from support.runs import train

from rope_exp import load_run
from rope_exp.commands.generate import main as generate
from rope_exp.commands.prepare import main as prepare
from rope_exp.errors import ConfigError
from rope_exp.files import read_json
from rope_exp.folder import read_metrics
from rope_exp.runs import read_run

SMALL = (
    "model.hidden_size=32",
    "model.intermediate_size=64",
    "model.num_hidden_layers=2",
    "train.num_steps=40",
    "train.global_batch_size=4",
    "train.eval_every=20",
    "train.eval_sequences=4",
    "train.save_every=10",
    "train.log_every=1",
    "train.precision=fp32",
)
ADDITION = ("data=addition", "train.seq_len=64", "train.probes=[answers]", "pe=qkvo_rope", *SMALL)
SPIKES = (
    "data=spikes",
    "train.seq_len=200",
    "train.probes=[fit]",
    "pe=qkvo_rope",
    "pe.fraction=0.5",
    "pe.base=40000",
    *SMALL,
)


def train_task(folder: Path, words: tuple[str, ...]) -> Path:
    done = train(*words, f"run.dir={folder / 'run'}", cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder / "run"


@pytest.fixture(scope="module")
def added(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_task(tmp_path_factory.mktemp("added"), ADDITION)


@pytest.fixture(scope="module")
def spiked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_task(tmp_path_factory.mktemp("spiked"), SPIKES)


@pytest.mark.parametrize("name", ["added", "spiked"])
def test_it_learns_and_is_asked(name: str, request: pytest.FixtureRequest) -> None:
    folder = request.getfixturevalue(name)
    rows = read_metrics(folder)
    assert rows[-1]["train/loss"] < rows[0]["train/loss"]
    run = read_run(folder)
    assert (run.status, run.epochs) == ("finished", None)
    assert list(read_json(folder / "probes.json")) == list(run.config.train.probes)
    assert run.env["certificate"]["measured"] == "invariant"


def test_a_model_of_addition_is_opened_and_goes_on(
    added: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, tokenizer = load_run(added)
    ids = tokenizer.encode("12+34=").ids
    assert model(torch.tensor([ids])).shape == (1, 6, 14)
    assert generate([str(added), "12+34=", "--tokens", "4", "--temperature", "0"]) == 0
    assert capsys.readouterr().out.startswith("12+34=")
    with refused("TEXT", "tokens alone: +0123456789;=_", by=ConfigError):
        generate([str(added), "12 + 34 ="])
    with refused("TEXT='caf\\udce9': is no UTF-8", by=ConfigError):
        generate([str(added), "caf\udce9"])


def test_a_model_of_spikes_is_opened(spiked: Path) -> None:
    """It gives two numbers per position, and has no text to generate."""
    model, tokenizer = load_run(spiked)
    ids_BT = torch.tensor([tokenizer.encode("unit03 unit11 query").ids])
    times_BT = torch.tensor([[0.1, 0.25, 0.2]]) * 2 * torch.pi / 1e-4
    assert model(ids_BT, positions_BT=times_BT).shape == (1, 3, 2)
    with refused("data=spikes, in which no token ends a text", by=ConfigError):
        generate([str(spiked), "unit03"])


def test_there_is_nothing_to_prepare(capsys: pytest.CaptureFixture[str]) -> None:
    assert prepare(["data=copy"]) == 0
    said = capsys.readouterr().out
    assert "generated" in said
    assert "vocabulary: 7" in said
