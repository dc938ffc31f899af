"""Tests of scripts/bench.py: races between contenders, decoding and length, and errors."""

import sys
import tempfile
from pathlib import Path

import bench
import pytest
from benchmarks.ours import spec_of
from benchmarks.race import race

from rope_exp.system.files import read_json


@pytest.mark.torture
def test_a_race_measures_every_contender_against_the_first(
    tiny_overrides: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`ours` is this checkout's train.py, whose optimizer steps are the steps of the race."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "scratch"))
    (tmp_path / "scratch").mkdir()
    words = [*tiny_overrides, "launch.device=cpu", "train.compile=false"]
    spec = spec_of(words)
    arms = ("ours", "bare", "Trainer")

    found = race({arm: spec | {"arm": arm} for arm in arms}, rounds=2, steps=2)

    assert tuple(found) == arms
    assert found["ours"]["times_as_slow"] == [1.0, 1.0, 1.0]
    for summary in found.values():
        assert summary["rounds"] == 2
        assert summary["tokens_per_s"] == pytest.approx(4 * 16 / summary["step_s"][1])
        assert summary["peak_bytes"] > 2**26, "torch alone takes more"
    assert list((tmp_path / "scratch").iterdir()) == [], "a race leaves nothing"


def test_a_contender_that_fails_ends_the_race_in_its_words(tiny_overrides: list[str]) -> None:
    spec = spec_of([*tiny_overrides, "launch.device=cpu"]) | {"arm": "litgpt"}
    with pytest.raises(RuntimeError, match=r"No module named '(lightning|litgpt)'"):
        race({"litgpt": spec}, rounds=1, steps=1)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["sped"], "part=sped is not one of check, limits, speed"),
        (["--rounds", "0"], "--rounds: 0 must be at least 1"),
        (["race", "--name", "length"], "--name: length would be mistaken for a result"),
        (["--models", "nanno"], "model=nanno"),
        (["--set", "launch.num_processes=2"], "launch.num_processes=2: must be 1"),
        (["against", "--tree", "{empty}"], "must be the folder of a checkout"),
        (["race"], "--arm: say at least one"),
        (["decode"], "--arm: say at least one"),
        (["length"], "--arm: say at least one"),
        (["figure", "--out", "{empty}"], "holds no result of speed, decode or length"),
    ],
)
def test_a_mistake_is_one_sentence(
    arguments: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = [word.format(empty=tmp_path) for word in arguments]
    if "--out" not in words:
        words += ["--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["bench.py", "--set", "launch.device=cpu", *words])
    with pytest.raises(SystemExit) as ended:
        sys.exit(bench.main())
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_decoding_and_length_are_measured_and_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The bytes in the caches of tiny models equal a count by hand, for each arm and context."""
    monkeypatch.setattr("benchmarks.decode.CONTEXTS", (4, 24))
    monkeypatch.setattr("benchmarks.decode.NUM_TOKENS", 2)
    monkeypatch.setattr("benchmarks.length.LENGTHS", (8, 16))
    sizes = ("hidden_size=16", "intermediate_size=16", "num_hidden_layers=1")
    words = [f"model.{size}" for size in sizes] + ["launch.device=cpu", "train.compile=false"]
    arms = ("attn=softmax", "attn=retention")
    argv = ["bench.py", "decode", "length", "--models", "nano", "--rounds", "1"]
    argv += ["--out", str(tmp_path), *(f"--set={word}" for word in words)]
    monkeypatch.setattr(sys, "argv", [*argv, *(f"--arm={arm}" for arm in arms)])
    assert bench.main() == 0
    capsys.readouterr()

    decoded = read_json(tmp_path / "decode-nano.json")["result"]["arms"]
    # In float32, softmax keeps 16 + 16 numbers per token, and retention two states of 8 x 8.
    assert decoded["attn=softmax"]["kept_bytes"] == [4 * 4 * 32, 24 * 4 * 32]
    assert decoded["attn=retention"]["kept_bytes"] == [4 * 2 * 64] * 2
    passes = read_json(tmp_path / "length-nano.json")["result"]["arms"]
    assert all(seconds > 0 for arm in passes.values() for seconds in arm["pass_s"])
    drawn = [tmp_path / "decode-nano.png", tmp_path / "length-nano.png"]
    assert sorted(tmp_path.glob("*.png")) == drawn

    # Figures are drawn again from the files, without measuring anything.
    before = {path: path.read_bytes() for path in tmp_path.glob("*.json")}
    for again in ([*sys.argv, "--go-on"], ["bench.py", "figure", "--out", str(tmp_path)]):
        for path in drawn:
            path.unlink()
        monkeypatch.setattr(sys, "argv", again)
        assert bench.main() == 0
        assert sorted(tmp_path.glob("*.png")) == drawn
        assert {path: path.read_bytes() for path in tmp_path.glob("*.json")} == before
