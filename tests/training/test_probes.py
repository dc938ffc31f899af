"""Tests of the probes that a run computes at its end, before its result."""

import itertools
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.trainers import Make, losses, same, snapshot

from rope_exp import checkpoint
from rope_exp import trainer as record
from rope_exp.files import read_json, write_json
from rope_exp.folder import read_run
from rope_exp.probes import _windows as probes

ASKED = ("train.probes=[windows,shift,positions]", "train.micro_batch_size=1")


def test_probes_are_written_before_the_result(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """A result then implies probes. Their mean over windows is the run's own held-out loss."""
    trainer = make("run", *ASKED)
    written: list[str] = []

    def write(path: Path, values: Any) -> None:
        written.append(path.name)
        write_json(path, values)

    monkeypatch.setattr(record, "write_json", write)
    assert trainer.train() == "finished"
    assert written == ["probes.json", "result.json"]

    found = read_json(trainer.folder / "probes.json")
    result = read_json(trainer.folder / "result.json")
    assert list(found) == ["windows", "shift", "positions"]
    assert read_run(trainer.folder).probes == found
    assert statistics.mean(found["windows"]["loss"]) == pytest.approx(result["val/loss"], abs=1e-5)


def test_probes_change_no_number_of_the_run(make: Make) -> None:
    asked = make("asked", *ASKED)
    plain = make("plain", ASKED[1])
    assert asked.train() == "finished"
    assert plain.train() == "finished"
    assert losses(asked) == losses(plain)
    assert same(snapshot(asked), snapshot(plain))
    assert asked.config.config_sha256 == plain.config.config_sha256
    assert not (plain.folder / "probes.json").exists()


@pytest.mark.parametrize("at", [0, 3])
def test_a_run_stopped_in_its_probes_goes_on(
    make: Make, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    """The same command repeats all probes, trains no step, and ends as an undisturbed run does."""
    whole = make("whole", *ASKED)
    assert whole.train() == "finished"

    stopped = make("run", *ASKED)
    asked = itertools.count()
    token_nats = probes.token_nats

    def stopping(*arguments: Any) -> torch.Tensor:
        stopped.stop.requested |= next(asked) >= at
        return token_nats(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(probes, "token_nats", stopping)
        assert stopped.train() == "stopped"
    assert next(asked) == at + 1
    assert not (stopped.folder / "probes.json").exists()
    assert not (stopped.folder / "result.json").exists()

    again = make("run", *ASKED)
    assert again.step == again.config.train.num_steps
    assert again.train() == "finished"
    assert losses(again) == losses(whole)
    assert read_json(again.folder / "probes.json") == read_json(whole.folder / "probes.json")
    ours, theirs = (read_json(each.folder / "result.json") for each in (again, whole))
    timed = dict.fromkeys(("tokens_per_s", "mfu", "wall_s"))
    assert ours | timed == theirs | timed


def test_a_run_that_diverged_is_asked_nothing(make: Make) -> None:
    trainer = make("run", *ASKED)
    trainer.decoder.lm_head.weight.register_hook(lambda gradient: gradient * torch.inf)
    assert trainer.train() == "diverged"
    assert (trainer.folder / "result.json").exists()
    assert not (trainer.folder / "probes.json").exists()


def test_the_learned_token_shift_is_told_by_layer(make: Make) -> None:
    """The reference is the last checkpoint, whose values have moved from their initial one."""
    trainer = make("run", "model.token_shift=true", "train.probes=[token_shift]", "optim.lr=0.05")
    assert trainer.train() == "finished"
    found = read_json(trainer.folder / "probes.json")["token_shift"]
    assert read_run(trainer.folder).probes["token_shift"] == found
    saved = checkpoint.load(trainer.folder / "checkpoints", trainer.step).model
    summaries: dict[str, Callable[[list[float]], float]] = {
        "mean": statistics.fmean,
        "sd": statistics.pstdev,
        "min": min,
        "max": max,
    }
    for layer in (0, 1):
        mus = saved[f"model.layers.{layer}.self_attn.token_shift"].tolist()
        for name, summary in summaries.items():
            assert found[name][layer] == pytest.approx(summary(mus), rel=1e-5)
        assert found["sd"][layer] > 0
