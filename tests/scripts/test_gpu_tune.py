"""Tests of scripts/gpu_tune.py on a CPU: its files, failures, and steps; a graph needs a GPU."""

from argparse import Namespace
from pathlib import Path

import gpu_tune
import pytest
from gpu_tune import Setting

from rope_exp.errors import EXIT_FAILED, EXIT_STOPPED
from rope_exp.files import read_json

TINY = (
    "model.hidden_size=32 model.intermediate_size=64 model.num_hidden_layers=2 "
    "model.num_attention_heads=2 model.num_key_value_heads=2 train.seq_len=16 train.precision=fp32"
)
EAGER = Setting("nano", 16, "flash", "eager", overrides=TINY)
HALVES = Setting("nano", 8, "flash", "eager", overrides=TINY)
FAILING = Setting("nano", 16, "none", "eager", overrides=TINY)


@pytest.fixture
def options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Namespace:
    monkeypatch.setattr(gpu_tune, "EACH_S", 0.01)
    return Namespace(out=tmp_path, device="cpu", seconds=60.0)


def test_a_machine_without_a_gpu_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("sys.argv", ["gpu_tune.py", "--out", str(tmp_path / "out")])
    with pytest.raises(SystemExit, match="2"):
        gpu_tune.main()
    assert "there is no GPU here" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_settings_are_measured_once_and_a_failure_again(options: Namespace) -> None:
    assert gpu_tune.tune([FAILING], options) == EXIT_FAILED
    assert gpu_tune.tune([FAILING, EAGER, HALVES], options) == 0
    failed, whole, halves = read_json(options.out / "tune.json")["settings"]
    assert failed["error"] == "KeyError: 'none'"
    assert whole["tokens_per_s"] == pytest.approx(16 * 16 / whole["step_s"])
    assert halves["losses"] == pytest.approx(whole["losses"], rel=1e-3)

    options.seconds = -1.0
    assert gpu_tune.tune([EAGER, HALVES, FAILING], options) == EXIT_STOPPED
    assert read_json(options.out / "tune.json")["settings"] == [failed, whole, halves]
