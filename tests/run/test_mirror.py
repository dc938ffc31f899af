"""What wandb is told of a run: its rows, its config, where it stands and how it ended.

wandb is the real package in real processes, offline or against a stand-in for its servers.
"""

import json
import os
import shutil
import signal
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.results import DIVERGED, FINISHED
from support.runs import assert_same_run
from support.wandb import (
    KEY,
    WARNING,
    Tracked,
    WandbServer,
    as_sent,
    assert_one_warning,
    history,
    mirror_again,
    recorded,
)

from rope_exp.config.run import RunConfig
from rope_exp.run import mirror
from rope_exp.run.folder import write_config
from rope_exp.run.metrics import MetricsWriter, read_metrics
from rope_exp.run.mirror import follow, run_id
from rope_exp.run.tracker import TrackerError, mirrored
from rope_exp.system.files import write_json

ENV = {"marks": [], "started": ["2026-01-01T00:00:00Z"], "params": 1234, "device": "a chip"}


def write_run(folder: Path, config: RunConfig) -> None:
    """Write the files of a run that has recorded three rows."""
    folder.mkdir()
    write_config(folder, config)
    write_json(folder / "env.json", ENV)
    writer = MetricsWriter(folder)
    for step in (1, 2, 3):
        row = {"step": step, "tokens": 64 * step, "train/loss": 5.0 - step, "mfu": None}
        writer.write(row if step < 3 else row | {"val/loss": 4.5})
    writer.close()


def said(records: list[Any]) -> dict[str, Any]:
    """What a .wandb file says of the run's end."""
    [end] = [record.exit for record in records if record.HasField("exit")]
    summary = {item.key: item.value_json for record in records for item in record.summary.update}
    return {
        "exit_code": end.exit_code,
        "status": json.loads(summary["status"]),
        "is_preempting": any(record.HasField("preempting") for record in records),
        "nulls": [key for key, value in summary.items() if value == "null"],
    }


# -- from a run's files --------------------------------------------------------------------------


def test_one_command_mirrors_a_run_from_its_files(
    tiny: Callable[..., RunConfig], tmp_path: Path
) -> None:
    config = tiny("tracker=wandb", "tracker.mode=offline", "pe=vo_rope", "seed=3")
    folder = tmp_path / "run"
    write_run(folder, config)
    write_json(folder / "result.json", FINISHED)
    done = mirror_again(folder, home=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{folder}: mirrored as {run_id(folder)}\n"

    records = recorded(folder)
    run = next(record.run for record in records if record.HasField("run"))
    assert run.run_id == run_id(folder)
    assert run.display_name == "vo_rope-s3"
    assert run.run_group == config.group
    assert run.job_type == "vo_rope"
    assert run.project == "rope_exp"
    assert set(run.tags) == {config.data.name, config.model.name, "rotate=vo"}

    stored = {item.key: json.loads(item.value_json) for item in run.config.update}
    # What is null at the top is not stored.
    assert {key: stored.get(key) for key in config.to_dict()} == config.to_dict()
    assert stored["rotate"] == "vo"
    assert stored["params"] == 1234
    assert stored["tokens_planned"] == 6 * 4 * 16
    assert stored["group_sha256"] == config.group_sha256
    assert stored["env"] == ENV

    metrics = [record.metric for record in records if record.HasField("metric")]
    assert any(metric.glob_name == "*" and metric.step_metric == "tokens" for metric in metrics)
    assert any(metric.name == "tokens" and metric.options.hidden for metric in metrics)
    assert history(records) == as_sent(read_metrics(folder))
    assert said(records) == {
        "exit_code": 0,
        "status": "finished",
        "is_preempting": False,
        "nulls": [],
    }


def test_what_is_no_run_is_not_mirrored(tmp_path: Path) -> None:
    done = mirror_again(tmp_path / "nowhere", home=tmp_path)
    assert done.returncode == 2
    folder = tmp_path / "nowhere"
    assert done.stderr == f"error: RUN_FOLDER={folder}: there is no run in this folder\n"
    assert list(tmp_path.iterdir()) == []


def test_a_killed_mirror_costs_a_warning_and_is_made_good(
    untracked: tuple[Path, list[str]], tmp_path: Path
) -> None:
    """The warning's own command makes the history whole."""
    folder, command = untracked
    tracked = Tracked(tmp_path, [*command, "tracker.mode=offline"])
    with tracked.held(until=lambda: list((tmp_path / "run").rglob("*.wandb"))) as processes:
        os.kill(processes["mirror"], signal.SIGKILL)
    assert_one_warning(tracked.finish(), "its process ended with SIGKILL")
    assert_same_run(folder, tmp_path / "run")

    shutil.rmtree(tmp_path / "run" / "wandb")
    done = mirror_again(tmp_path / "run", home=tmp_path)
    assert done.returncode == 0, done.stderr
    assert history(recorded(tmp_path / "run")) == as_sent(read_metrics(tmp_path / "run"))


# -- beside a run --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ending", "status", "exit_code"),
    [
        ("a result", "diverged", 3),
        ("a return", "stopped", 75),
        ("an exception", "failed", 1),
    ],
)
def test_wandb_is_told_how_a_run_ended(
    tiny: Callable[..., RunConfig], tmp_path: Path, ending: str, status: str, exit_code: int
) -> None:
    """A stopped run goes on, so it is marked as preempted; the others are over."""
    folder = tmp_path / "run"
    config = tiny("tracker=wandb", "tracker.mode=offline")
    write_run(folder, config)
    caught = None
    try:
        with mirrored(config, folder):
            wait_for_file(folder)
            if ending == "a result":
                write_json(folder / "result.json", DIVERGED)
            elif ending == "an exception":
                raise RuntimeError("as training might")
    except RuntimeError as error:
        caught = error
    assert (caught is not None) == (ending == "an exception")
    assert said(recorded(folder)) == {
        "exit_code": exit_code,
        "status": status,
        "is_preempting": status == "stopped",
        "nulls": [],
    }


def wait_for_file(folder: Path) -> None:
    """Wait until wandb has begun to write."""
    deadline = time.monotonic() + 60
    while not list(folder.rglob("*.wandb")):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_in_a_sweep_of_wandbs_the_sweep_says_where_a_run_stands(
    tiny: Callable[..., RunConfig],
    tmp_path: Path,
    wandb_server: WandbServer,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Its agent names project, entity and id in the environment; ours would be ignored, aloud."""
    given_by_agent = {
        "WANDB_SWEEP_ID": "sweep1",
        "WANDB_PROJECT": "theirs",
        "WANDB_ENTITY": "them",
        "WANDB_RUN_ID": "run1",
    }
    own = {"WANDB_BASE_URL": wandb_server.address, "WANDB_API_KEY": KEY}
    for name, value in {**given_by_agent, **own, "HOME": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    folder = tmp_path / "run"
    config = tiny("tracker=wandb", "tracker.project=ours")
    write_run(folder, config)
    assert mirror._place(config.tracker, folder) == {}
    with mirrored(config, folder):
        wait_for_file(folder)
    assert WARNING not in capfd.readouterr().err
    [upsert, *_] = wandb_server.upserts
    assert (upsert["name"], upsert["project"], upsert["entity"]) == ("run1", "theirs", "them")
    assert upsert["sweep"] == "sweep1"
    assert [row["_step"] for row in wandb_server.histories["run1"]] == [1, 2, 3]
    assert wandb_server.ends == {"run1": 75}
    assert wandb_server.preempting == {"run1"}


def test_a_run_that_goes_on_sends_wandb_what_it_lacks(
    untracked: tuple[Path, list[str]], tmp_path: Path, wandb_server: WandbServer
) -> None:
    """And a killed run leaves nobody behind: its mirror sends what was there, and ends."""
    folder, command = untracked
    killed = Tracked(tmp_path, command, WANDB_BASE_URL=wandb_server.address)
    with killed.held(until=lambda: wandb_server.histories) as processes:
        os.kill(processes["worker"], signal.SIGKILL)
    killed.end()
    assert killed.process.returncode == 1
    [[name, rows]] = wandb_server.histories.items()
    before = [row["_step"] for row in rows]
    assert before
    assert before == list(range(1, len(before) + 1))
    assert wandb_server.ends.pop(name) == 1

    stderr = Tracked(tmp_path, command, WANDB_BASE_URL=wandb_server.address).finish()
    assert WARNING not in stderr
    assert_same_run(folder, tmp_path / "run")
    assert list(wandb_server.histories) == [name]
    assert wandb_server.ends == {name: 0}
    expected = as_sent(read_metrics(tmp_path / "run"))
    for key in ("_step", "train/loss", "val/loss"):
        assert [row.get(key) for row in rows] == [row.get(key) for row in expected]


# -- parts ---------------------------------------------------------------------------------------


def test_following_ends_with_the_last_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last rows are written between the mirror's last look and the end it is told of."""
    end: Future[str] = Future()
    writer = MetricsWriter(tmp_path)
    steps = iter((1, 2, 3))

    def write_instead_of_waiting(*_: object) -> None:
        writer.write({"step": next(steps)})
        if writer.last["step"] == 2:
            writer.write({"step": next(steps)})
            end.set_result("stopped")

    monkeypatch.setattr(mirror, "wait", write_instead_of_waiting)
    rows = follow(tmp_path / "metrics.jsonl", end)
    assert [row["step"] for row in rows] == [1, 2, 3]
    writer.close()


@given(st.binary(max_size=40))
def test_a_damaged_id_is_drawn_anew_and_then_kept(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    folder = tmp_path_factory.mktemp("id")
    (folder / "wandb_id").write_bytes(content)
    identity = run_id(folder)
    assert len(identity) == 16
    assert run_id(folder) == identity == (folder / "wandb_id").read_text()


@pytest.mark.parametrize(
    ("line", "is_loss"),
    [
        ("WARNING Ignoring project 'ours' when running a sweep.", False),
        ("WARNING A newer version of wandb is available.", False),
        ("Syncing run vo_rope-s0", False),
        ("WARNING Fatal error while uploading data. Some run data will not be synced", True),
        ("WARNING There was an issue processing step 3; some data may be missing.", True),
        ("WARNING Tried to log to step 3; this data will be ignored.", True),
        ("ERROR No API key configured.", True),
    ],
)
def test_what_wandb_prints_counts_if_something_was_lost(line: str, is_loss: bool) -> None:
    try:
        with mirror._captured():
            os.write(2, f"wandb: {line}\n".encode())
    except TrackerError as error:
        assert is_loss
        assert str(error) == line
    else:
        assert not is_loss
