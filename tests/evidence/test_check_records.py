"""Tests of `rope-exp check-records`, which prints one line per campaign and per fault."""

import json
from pathlib import Path

import pytest
from support.records import make_records
from support.refused import refused

from rope_exp.commands import check_records
from rope_exp.evidence.records import canonical, digest
from rope_exp.system.errors import EXIT_FAILED, ConfigError


def test_whole_and_harmed_records_are_told_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_records(tmp_path, "good", rows=("qk_rope", "nope"), seeds=(0, 1))
    make_records(tmp_path, "harmed", rows=("qk_rope",), seeds=(0, 1))
    assert check_records([str(tmp_path)]) == 0
    assert "good: 4 of 4 records are whole, and may be compared" in capsys.readouterr().out

    file = tmp_path / "harmed" / "qk_rope-s0.json"
    values = json.loads(file.read_text())
    values["result"]["val/loss"] -= 0.1
    file.write_text(canonical(values))
    assert check_records([str(tmp_path)]) == EXIT_FAILED
    good, harmed, fault = capsys.readouterr().out.splitlines()
    assert good.startswith("good: 4 of 4")
    assert harmed.startswith("harmed: 1 of 2")
    assert f"{file} was changed since it was written" in fault


def test_runs_of_other_tokens_may_not_be_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each record is valid by itself, but the two runs of the seed saw different tokens."""
    make_records(tmp_path, "c", rows=("qk_rope", "nope"), seeds=(0,))
    file = tmp_path / "c" / "nope-s0.json"
    values = json.loads(file.read_text())
    values["result"]["order_sha256"] = "0" * 64
    file.write_text(canonical(values | {"sha256": digest(values)}))
    assert check_records([str(tmp_path)]) == EXIT_FAILED
    [line] = capsys.readouterr().out.splitlines()
    assert line.startswith("c: 2 of 2 records are whole, and may not be compared: ")
    assert "order_sha256" in line


def test_a_folder_without_records_is_refused(tmp_path: Path) -> None:
    with refused("FOLDER=", "holds no CAMPAIGN/CELL.json", by=ConfigError):
        check_records([str(tmp_path)])
