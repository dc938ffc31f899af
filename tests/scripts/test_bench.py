"""The bench: its contenders train what they say, in turn, and end; its mistakes are one sentence."""

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from support.configs import REPOSITORY

sys.path.insert(0, str(REPOSITORY / "scripts"))

from benchmarks.race import Entry, race

from rope_exp.config.compose import run_config
from rope_exp.config.resolve import settle
from rope_exp.config.run import RunConfig


@pytest.fixture
def small(tiny_overrides: list[str]) -> RunConfig:
    return settle(run_config([*tiny_overrides, "launch.device=cpu"]))


def test_a_race_measures_every_contender_against_the_first_and_ends_them(
    small: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "scratch"))
    (tmp_path / "scratch").mkdir()
    found = race(
        {name: Entry(name, small) for name in ("ours eager", "bare eager", "Trainer eager")},
        rounds=2,
        steps=2,
    )
    assert list(found) == ["ours eager", "bare eager", "Trainer eager"]
    assert found["ours eager"]["times_as_slow"] == [1.0, 1.0, 1.0]
    for summary in found.values():
        assert summary["rounds"] == 2
        assert summary["tokens_per_s"] == pytest.approx(4 * 16 / summary["step_s"][1])
        assert summary["peak_bytes"] > 2**26  # torch alone
    assert list((tmp_path / "scratch").iterdir()) == []


def test_a_contender_that_fails_ends_the_race_with_its_own_words(small: RunConfig) -> None:
    with pytest.raises(RuntimeError, match=r"No module named '(lightning|litgpt)'"):
        race({"litgpt": Entry("litgpt", small)}, rounds=1, steps=1)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["sped"], "part=sped is not one of check, limits, speed"),
        (["--peers", "ours"], "'ours' is not one of bare, Trainer eager"),
        (["--rounds", "0"], "--rounds: 0 must be at least 1"),
        (["--models", "nanno"], "model=nanno"),
        (["--set", "launch.num_processes=2"], "launch.num_processes=2: must be 1"),
        (["figure", "--out", "{empty}"], "holds no result of the part speed"),
    ],
)
def test_a_mistake_is_one_sentence(arguments: list[str], said: str, tmp_path: Path) -> None:
    words = [word.format(empty=tmp_path) for word in arguments]
    command = [sys.executable, "scripts/bench.py", *words, "--set", "launch.device=cpu"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr
