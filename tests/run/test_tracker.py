"""Tests of the rows, config, name and final status that a tracker receives from a run.

wandb is the real package, offline. trackio is a stub with the
signatures of its version 0.43.
"""

import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from support.refused import refused
from support.results import DIVERGED, FINISHED
from support.wandb import WARNING, as_sent, history, recorded

from rope_exp import tracker
from rope_exp.admit import acquire, admit
from rope_exp.config import RunConfig
from rope_exp.files import write_json
from rope_exp.folder import MetricsWriter, read_config, read_metrics, write_config
from rope_exp.tracker import Tracker, _run_id

ENV = {"marks": [], "started": ["2026-01-01T00:00:00Z"], "params": 1234, "device": "a chip"}


@pytest.fixture(autouse=True)
def fresh_wandb(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Reset wandb as if in a new process, with a home folder that holds no key."""
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name, value in tracker.SETTINGS.items():
        monkeypatch.setenv(name, value)
    wandb.teardown()
    yield
    wandb.teardown()


def write_run(folder: Path, config: RunConfig, num_rows: int = 3) -> None:
    """Write the files of a run that has recorded some rows."""
    folder.mkdir(exist_ok=True)
    write_config(folder, config)
    write_json(folder / "env.json", ENV)
    writer = MetricsWriter(folder)
    for step in range(1, num_rows + 1):
        writer.write(row(step))
    writer.close()


def row(step: int) -> dict[str, Any]:
    values = {"step": step, "tokens": 64 * step, "train/loss": 5.0 - step, "mfu": None}
    return values | {"val/loss": 4.5} if step == 3 else values


def written(folder: Path) -> list[Any]:
    """End wandb's process, which completes the one .wandb file, and return its records."""
    pytest.importorskip("wandb").teardown()
    return recorded(folder)


def first_run(records: list[Any]) -> Any:
    return next(record.run for record in records if record.HasField("run"))


def said(records: list[Any]) -> dict[str, Any]:
    """Return the facts about the run's end in the records of a .wandb file."""
    [end] = [record.exit for record in records if record.HasField("exit")]
    summary = {item.key: item.value_json for record in records for item in record.summary.update}
    return {
        "exit_code": end.exit_code,
        "status": json.loads(summary["status"]),
        "is_preempting": any(record.HasField("preempting") for record in records),
        "nulls": [key for key, value in summary.items() if value == "null"],
    }


def test_none_begins_nothing_and_writes_nothing(
    tiny: Callable[..., RunConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracker, "_begin", pytest.fail)
    (tmp_path / "run").mkdir()
    with Tracker(tiny(), tmp_path / "run") as none:
        none.row(row(1))
    assert list((tmp_path / "run").iterdir()) == []


# -- sending -------------------------------------------------------------------------------------


def test_a_run_is_sent_with_its_config_and_its_end(
    tiny: Callable[..., RunConfig], tmp_path: Path
) -> None:
    config = tiny("tracker=wandb", "tracker.mode=offline", "pe=vo_rope", "seed=3")
    folder = tmp_path / "run"
    write_run(folder, config)
    with Tracker(config, folder):
        write_json(folder / "result.json", FINISHED)

    records = written(folder)
    run = first_run(records)
    assert run.run_id == (folder / "wandb_id").read_text()
    assert run.display_name == "vo_rope-s3"
    assert run.run_group == config.group
    assert run.job_type == "vo_rope"
    assert run.project == "rope_exp"

    stored = {item.key: json.loads(item.value_json) for item in run.config.update}
    # Null values at the top level are not stored.
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


def test_a_resumed_run_is_sent_the_rows_that_it_lacks() -> None:
    sent: list[Any] = []
    online = SimpleNamespace(starting_step=3, log=lambda values, step: sent.append((step, values)))
    tracker._send(online, map(row, range(1, 5)))
    assert [step for step, _ in sent] == [3, 4]
    assert sent[0][1] == {"tokens": 192, "train/loss": 2.0, "val/loss": 4.5}


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
    """A stopped run resumes later, so it is marked as preempted; the others are over."""
    folder = tmp_path / "run"
    config = tiny("tracker=wandb", "tracker.mode=offline")
    write_run(folder, config)
    caught = None
    try:
        with Tracker(config, folder):
            if ending == "a result":
                write_json(folder / "result.json", DIVERGED)
            elif ending == "an exception":
                raise RuntimeError("as training might")
    except RuntimeError as error:
        caught = error
    assert (caught is not None) == (ending == "an exception")
    assert said(written(folder)) == {
        "exit_code": exit_code,
        "status": status,
        "is_preempting": status == "stopped",
        "nulls": [],
    }


# -- destination ---------------------------------------------------------------------------------


def test_the_environment_counts_where_the_config_keeps_a_default(
    tiny: Callable[..., RunConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tags of the environment join our own; tags of the config replace the environment's."""
    given = {"MODE": "offline", "PROJECT": "theirs", "ENTITY": "them", "NAME": "its name"}
    given |= {"NOTES": "because", "TAGS": "x,y", "DIR": str(tmp_path / "dir"), "RUN_GROUP": "g"}
    for name, value in given.items():
        monkeypatch.setenv(f"WANDB_{name}", value)
    (tmp_path / "dir").mkdir()
    config = tiny("tracker=wandb")
    write_run(tmp_path / "run", config)
    with Tracker(config, tmp_path / "run"):
        pass
    run = first_run(written(tmp_path / "dir"))
    assert (run.project, run.entity, run.display_name) == ("theirs", "them", "its name")
    assert (run.notes, run.run_group) == ("because", "g")
    assert {"x", "y", "rotate=qk"} <= set(run.tags)

    config = tiny("tracker=wandb", "tracker.project=ours", "tracker.tags=[z]", "tracker.notes=no")
    place = tracker._wandb_arguments(config, tmp_path / "run")
    assert (place["project"], place["notes"]) == ("ours", "no")
    assert "z" in place["tags"]
    assert "x" not in place["tags"]


def test_a_run_of_a_sweep_is_named_by_what_is_swept(
    tiny: Callable[..., RunConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    [job] = admit([tiny()])
    job.title = "qk_rope-optim.lr=0.003-s0"
    acquire(job)
    assert tracker._name(read_config(job.folder)) == job.title
    job.release()

    monkeypatch.setenv("WANDB_NAME", "its name")
    acquire(job)
    assert read_config(job.folder).tracker.run_name is None
    job.release()


# -- failures ------------------------------------------------------------------------------------


@pytest.fixture
def offline(tiny: Callable[..., RunConfig], tmp_path: Path) -> RunConfig:
    """Return the config of a run in tmp_path/run that wandb tracks offline."""
    config = tiny("tracker=wandb", "tracker.mode=offline")
    write_run(tmp_path / "run", config)
    return config


@pytest.mark.parametrize("error", [OSError("no"), SystemExit(1), KeyError("x")])
def test_an_init_that_fails_late_is_one_warning(
    offline: RunConfig,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    error: BaseException,
) -> None:
    def init(**_: Any) -> None:
        time.sleep(0.2)
        raise error

    monkeypatch.setattr("wandb.init", init)
    with Tracker(offline, tmp_path / "run") as broken:
        broken.row(row(4))
    [line] = capfd.readouterr().err.splitlines()
    assert line.startswith(f"{WARNING}{type(error).__name__}")
    assert line.endswith(f"the curves are in {tmp_path / 'run' / 'metrics.jsonl'}")


@pytest.mark.parametrize("call", ["log", "finish"])
def test_a_call_that_raises_later_is_one_warning(
    offline: RunConfig,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    call: str,
) -> None:
    with Tracker(offline, tmp_path / "run") as broken:
        wandb_run = broken.run
        with monkeypatch.context() as patch:
            patch.setattr(type(wandb_run), call, lambda *_, **__: 1 / 0)
            broken.row(row(4))
            broken.row(row(5))
            broken.__exit__(None)
    lines = capfd.readouterr().err.splitlines()
    assert sum(line.startswith(f"{WARNING}ZeroDivisionError") for line in lines) == 1


# -- trackio -------------------------------------------------------------------------------------


@pytest.fixture
def trackio(monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[int, Any]]:
    """Replace trackio by a stub, and return the rows that it stores, by run name."""
    stored: dict[str, dict[int, Any]] = {}

    def init(project: str, name: str, group: str, config: Any, resume: str = "never") -> Any:
        assert (project, resume) == ("rope_exp", "allow")
        assert config["group_sha256"]
        rows = stored.setdefault(name, {})

        def log(metrics: dict[str, Any], step: int | None = None) -> None:
            assert step not in rows
            assert step is not None
            rows[step] = metrics

        next_step = max(rows, default=-1) + 1
        return SimpleNamespace(id="x", log=log, finish=lambda: None, _next_step=next_step)

    module = ModuleType("trackio")
    module.init = init  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "trackio", module)
    return stored


def test_trackio_is_sent_every_row_once(
    tiny: Callable[..., RunConfig],
    tmp_path: Path,
    trackio: dict[str, dict[int, Any]],
    capfd: pytest.CaptureFixture[str],
) -> None:
    """The first start dies after row 3; the second resumes from step 2 and repeats row 3."""
    config = tiny("tracker=trackio")
    folder = tmp_path / "run"
    write_run(folder, config, num_rows=1)
    first = Tracker(config, folder)
    first.row(row(2))
    first.row(row(3))

    write_run(folder, config, num_rows=2)
    with Tracker(config, folder) as second:
        second.row(row(3))
        second.row(row(4))
    assert capfd.readouterr().err == ""
    [[name, rows]] = trackio.items()
    assert name.startswith("qk_rope-s0-")
    assert list(rows) == [1, 2, 3, 4]
    assert rows[3] == {"tokens": 192, "train/loss": 2.0, "val/loss": 4.5}


def test_a_tracker_that_is_not_installed_is_refused(tiny: Callable[..., RunConfig]) -> None:
    """The refusal comes before anything is written."""
    config = tiny("tracker=trackio")
    with refused("tracker=trackio: is not installed; `pip install trackio`"):
        admit([config])
    assert not config.folder.exists()


def test_an_empty_id_is_drawn_again(tiny: Callable[..., RunConfig], tmp_path: Path) -> None:
    """A power cut may empty the file, and wandb takes no empty id."""
    config = tiny("tracker=wandb")
    (tmp_path / "wandb_id").touch()
    drawn = _run_id(config, tmp_path)
    assert len(drawn) == 16
    assert _run_id(config, tmp_path) == drawn
