"""Tests that a campaign ends as if undisturbed after it was stopped or killed."""

import shutil
import signal
import sys
from pathlib import Path

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

from rope_exp.files import read_json


@pytest.mark.torture
def test_a_signal_stops_it_and_the_same_command_goes_on(home: Path, recorded: Path) -> None:
    """The first run is saved, the second does not begin; the second start records both."""
    first = progress(home).campaign.cells[0].config.folder
    process = start_campaign(home)
    wait_for(lambda: num_rows(first) >= 15, process)
    process.send_signal(signal.SIGTERM)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 75
    assert "stopped; the same command resumes" in stderr
    assert list((first / "checkpoints").glob("step_*"))
    assert records_of(home) == []
    assert [path.name for path in (home / RUNS).glob("mine/vo*/*") if path.name[0] != "."] == []

    assert run_campaign_command(home, "--hours", "1").returncode == 0
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


@pytest.mark.parametrize(
    "hours", [pytest.param((), marks=pytest.mark.torture), ("--hours", "0.0001")]
)
def test_a_signal_or_a_deadline_before_any_run(home: Path, hours: tuple[str, ...]) -> None:
    """The command ends as `train` does: exit code 75, one sentence, no traceback."""
    process = start_campaign(home, *hours, prelude=WAITS)
    assert process.stdout is not None
    if not hours:
        assert process.stdout.readline() == "there\n"
        process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=30)
    assert process.returncode == 75, stderr
    lines = [line for line in stderr.splitlines() if "cells have a record" not in line]
    assert lines == ["stopped; no run was in progress"]
