"""Tests of scripts/gpu_tune.py on a CPU: its files, failures, and steps; a graph needs a GPU."""

from argparse import Namespace
from pathlib import Path

import gpu_tune
import pytest
from gpu_tune import Setting, Step

from rope_exp.errors import EXIT_FAILED, EXIT_STOPPED
from rope_exp.files import read_json

TINY = (
    "model.hidden_size=32 model.intermediate_size=64 model.num_hidden_layers=2 "
    "model.num_attention_heads=2 model.num_key_value_heads=2 train.seq_len=16"
)
EAGER = Setting("nano", 16, "flash", "eager", overrides=TINY)
HALVES = Setting("nano", 8, "flash", "eager", overrides=TINY)
FAILING = Setting("nano", 16, "none", "eager", overrides=TINY)


def options(out: Path, seconds: float = 60.0) -> Namespace:
    return Namespace(out=out, device="cpu", seconds=seconds, each=0.01)


def test_a_failure_is_recorded_and_the_next_is_measured(tmp_path: Path) -> None:
    assert gpu_tune.tune([FAILING, EAGER], options(tmp_path)) == 0
    failed, measured = read_json(tmp_path / "tune.json")["settings"]
    assert failed["error"] == "KeyError: 'none'"
    assert measured["tokens_per_s"] == pytest.approx(16 * 16 / measured["step_s"])
    assert 0 < measured["host_s"] <= measured["step_s"]

    (tmp_path / "tune.json").unlink()
    assert gpu_tune.tune([FAILING], options(tmp_path)) == EXIT_FAILED


def test_a_repeated_command_measures_the_rest(tmp_path: Path) -> None:
    gpu_tune.tune([EAGER], options(tmp_path))
    [before] = read_json(tmp_path / "tune.json")["settings"]

    assert gpu_tune.tune([EAGER, HALVES], options(tmp_path, seconds=-1.0)) == EXIT_STOPPED
    assert gpu_tune.tune([EAGER, HALVES], options(tmp_path)) == 0
    found = read_json(tmp_path / "tune.json")["settings"]
    assert found[0] == before
    assert [row["rows"] for row in found] == [16, 8]


def test_micro_batches_give_the_loss_of_the_whole_batch() -> None:
    """The loss falls, so AdamW takes its steps."""
    whole = Step(EAGER, "cpu").losses
    assert Step(HALVES, "cpu").losses == pytest.approx(whole, rel=1e-3)
    assert len(whole) == gpu_tune.WARM_UP + 1
    assert sorted(whole, reverse=True) == whole


def test_a_race_compares_rotations_with_nope(tmp_path: Path) -> None:
    assert gpu_tune.race(EAGER, options(tmp_path, seconds=0.0)) == 0
    found = read_json(tmp_path / "race.json")
    assert found["times_nope"]["nope"] == [1.0, 1.0, 1.0]
    assert [*found["times_nope"]] == ["nope", "qk", "qkvo"]
