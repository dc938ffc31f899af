"""Tests of `rope-exp check-records`, which prints one line per campaign."""

from pathlib import Path

import pytest
from support.records import copy_records, edit_record
from support.refused import refused

from rope_exp.commands.check_records import main as check_records
from rope_exp.errors import EXIT_FAILED, ConfigError


def test_whole_and_harmed_records_are_told_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The last two are valid by themselves, but saw different tokens at one seed."""
    _, nope = copy_records(tmp_path, "english", "qk_rope-s0", "nope-s0")
    file, _ = copy_records(tmp_path, "tokens", *(f"nope-train.num_steps=2000-s{k}" for k in (0, 1)))
    assert check_records([str(tmp_path)]) == 0
    assert "english: 2 records are whole, and may be compared" in capsys.readouterr().out

    file.write_text(file.read_text().replace('"val/loss":', '"val/loss":1', 1))
    edit_record(nope, lambda record: record["result"].update(order_sha256="0" * 64))
    assert check_records([str(tmp_path)]) == EXIT_FAILED
    other, harmed = capsys.readouterr().out.splitlines()
    assert other.startswith("english: ")
    assert "order_sha256" in other
    assert harmed.startswith("tokens: ")
    assert str(file) in harmed


def test_a_folder_without_records_is_refused(tmp_path: Path) -> None:
    with refused("FOLDER=", "holds no CAMPAIGN", by=ConfigError):
        check_records([str(tmp_path)])
