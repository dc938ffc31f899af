"""Tests that a campaign ends as if undisturbed after it was stopped or killed."""

import shutil
import signal
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.campaigns import (
    RECORDS,
    RUNS,
    assert_same_records,
    progress,
    records_of,
    run_campaign_command,
    start_campaign,
)
from support.runs import num_rows, wait_for

from rope_exp import sweep
from rope_exp.campaign.campaign import run_campaign
from rope_exp.files import read_json


@pytest.mark.torture
def test_a_deadline_stops_it_and_the_same_command_goes_on(
    home: Path, recorded: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first run is saved, the second does not begin; the second start records both."""
    first = progress(home).campaign.cells[0].config.folder

    def monotonic() -> float:
        hours_passed = 2 if num_rows(first) >= 15 else 0
        return time.monotonic() + 3600 * hours_passed

    with monkeypatch.context() as patch:
        patch.setattr(sweep, "time", SimpleNamespace(monotonic=monotonic, sleep=time.sleep))
        assert run_campaign(progress(home), time.monotonic() + 3600) == 75
    assert "stopped; the same command resumes" in capsys.readouterr().err
    assert list((first / "checkpoints").glob("step_*"))
    assert records_of(home) == []
    assert [path.name for path in (home / RUNS).glob("mine/vo*/*") if path.name[0] != "."] == []

    assert run_campaign(progress(home), time.monotonic() + 3600) == 0
    assert_same_records(home, recorded)


@pytest.mark.skipif(
    sys.platform != "linux", reason="ranks die with their dispatcher on Linux alone"
)
def test_killed_and_started_again_it_loses_nothing(home: Path, recorded: Path) -> None:
    """After kill -9 in the middle of a run, its cell resumes, and an older record is unchanged."""
    first, second = (cell.config.folder for cell in progress(home).campaign.cells)
    shutil.copytree(recorded / RECORDS, home / RECORDS)
    records_of(home)[1].unlink()
    kept = records_of(home)[0].read_bytes()

    process = start_campaign(home)
    wait_for(lambda: num_rows(second) >= 15, process)
    process.kill()
    process.communicate()
    assert not (second / "result.json").exists()

    done = run_campaign_command(home)
    assert done.returncode == 0, done.stderr
    assert len(read_json(second / "env.json")["started"]) == 2
    assert not first.exists()
    assert records_of(home)[0].read_bytes() == kept
    assert_same_records(home, recorded)


# The process waits where a campaign prepares its data.
WAITS = """
import time
import rope_exp.campaign.campaign as campaign
campaign.admit = lambda *_: print("there", flush=True) or time.sleep(60)
"""


def test_a_signal_before_any_run(home: Path) -> None:
    """The command ends as `train` does: exit code 75, one sentence, no traceback."""
    process = start_campaign(home, prelude=WAITS)
    assert process.stdout is not None
    assert process.stdout.readline() == "there\n"
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=30)
    assert process.returncode == 75, stderr
    lines = [line for line in stderr.splitlines() if "cells have a record" not in line]
    assert lines == ["stopped before any run was started"]
