"""Tests of scripts/bench.py on a tiny model."""

import re

import bench
import pytest


def test_both_train_the_same_model(
    tiny_overrides: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Both read the same batch with the same weights, so their first losses agree."""
    here = ["launch.device=cpu", "train.compile=false", "train.micro_batch_size=2"]
    assert bench.main(["--rounds", "2", "--steps", "2", *tiny_overrides, *here]) == 0

    said = capsys.readouterr().out
    ours, theirs = (float(loss) for loss in re.findall(r"first loss (\S+)", said))
    assert ours == pytest.approx(theirs, abs=2e-3)
    assert re.search(r"^Trainer: \d+\.\d\d times as slow \(quartiles .*\)$", said, re.MULTILINE)


def test_a_mistake_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main(["model=nanno"]) == 2
    assert "model=nanno" in capsys.readouterr().err
