"""Tests of scripts/bench.py on a tiny model."""

import re

import bench
import pytest

from rope_exp.compose import resolve, run_config
from rope_exp.costs import flops_per_token


def test_both_train_the_same_model(
    tiny_overrides: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Both read the same batch with the same weights, so their first losses agree."""
    here = ["launch.device=cpu", "train.compile=false", "train.micro_batch_size=2"]
    assert bench.main(["--rounds", "2", "--steps", "2", *tiny_overrides, *here]) == 0

    said = capsys.readouterr().out
    ours, theirs = (float(loss) for loss in re.findall(r"first loss (\S+)", said))
    assert ours == pytest.approx(theirs, abs=2e-3)
    ratio = r"^Trainer, eager: \d+\.\d\d times as slow \(quartiles .*\)$"
    assert re.search(ratio, said, re.MULTILINE)


def test_the_rates_of_the_machine_come_first(
    tiny_overrides: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """A floor of a step's time is its operations by the rate of the run's own precision."""
    config = resolve(run_config([*tiny_overrides, "train.precision=fp32", "launch.device=cpu"]))
    bench.print_machine(config, vocab_size=257)

    said = capsys.readouterr().out
    rates = {name: float(rate) for name, rate in re.findall(r"in (\w+): (\S+) TFLOP/s", said)}
    assert list(rates) == ["bf16", "fp32"]
    [floor] = re.findall(r"fp32.*at least (\S+) ms", said)
    flops = config.train.tokens_per_step * flops_per_token(config, 257)
    assert float(floor) == pytest.approx(1e3 * flops / (rates["fp32"] * 1e12), rel=0.1, abs=0.1)
    assert re.search(r"^copies: \d+ GB/s", said, re.MULTILINE)


def test_a_mistake_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main(["model=nanno"]) == 2
    assert "model=nanno" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        bench.main(["--rounds", "0"])
    assert "--rounds and --steps must be at least 1" in capsys.readouterr().err


@pytest.mark.parametrize(("micro", "rows"), [(16, 8), (4, 4)])
def test_the_trainer_reads_as_many_rows_at_once_as_a_run(micro: int, rows: int) -> None:
    words = ["train.global_batch_size=8", f"train.micro_batch_size={micro}", "launch.device=cpu"]
    config = resolve(run_config(words))
    arguments = bench.trainer_arguments(config, "unused", 1, False)
    assert arguments.per_device_train_batch_size == rows
    assert arguments.gradient_accumulation_steps * rows == 8
