"""Tests of the rows, config, name and final status that a tracker receives from a run.

wandb is the real package, offline or without a server. trackio is a stub with the signatures of its
version 0.43.
"""

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.command import assert_refused
from support.refused import refused
from support.results import DIVERGED, FINISHED
from support.runs import Completed, assert_same_run, train
from support.wandb import as_sent, history, recorded

from rope_exp.admit import acquire, admit
from rope_exp.config import RunConfig
from rope_exp.files import write_json
from rope_exp.folder import MetricsWriter, read_config, read_metrics, write_config
from rope_exp.tracker import Tracker

wandb = pytest.importorskip("wandb")
ENV = {"marks": [], "started": ["2026-01-01T00:00:00Z"], "params": 1234, "device": "a chip"}
OFFLINE = ("tracker=wandb", "tracker.mode=offline")

# `write("pe=vo_rope")` is a run in tmp_path/run that has recorded three rows.
Write = Callable[..., tuple[RunConfig, Path]]


@pytest.fixture(autouse=True)
def _fresh_wandb(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Reset wandb as if in a new process, with a home folder that holds no key."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    wandb.teardown()
    yield
    wandb.teardown()


@pytest.fixture
def write(tiny: Callable[..., RunConfig], tmp_path: Path) -> Write:
    def make(*overrides: str, num_rows: int = 3) -> tuple[RunConfig, Path]:
        folder = tmp_path / "run"
        folder.mkdir(exist_ok=True)
        config = tiny(*overrides)
        write_config(folder, config)
        write_json(folder / "env.json", ENV)
        writer = MetricsWriter(folder)
        for step in range(1, num_rows + 1):
            writer.write(row(step))
        writer.close()
        return config, folder

    return make


def row(step: int) -> dict[str, Any]:
    values = {"step": step, "tokens": 64 * step, "train/loss": 5.0 - step, "mfu": None}
    return values | {"val/loss": 4.5} if step == 3 else values


def written(folder: Path) -> tuple[Any, list[Any]]:
    """End wandb's process, and return the run and all records of its one .wandb file."""
    wandb.teardown()
    records = recorded(folder)
    return next(record.run for record in records if record.HasField("run")), records


def end_of(records: list[Any]) -> tuple[int, str, bool]:
    """Return the exit code and status of a run, and whether it is marked as preempted."""
    [end] = [record.exit for record in records if record.HasField("exit")]
    summary = {item.key: item.value_json for record in records for item in record.summary.update}
    assert "null" not in summary.values()
    is_preempting = any(record.HasField("preempting") for record in records)
    return end.exit_code, json.loads(summary["status"]), is_preempting


def test_a_run_is_sent_with_its_config_and_its_end(write: Write) -> None:
    config, folder = write(*OFFLINE, "pe=vo_rope", "seed=3")
    with Tracker(config, folder):
        write_json(folder / "result.json", FINISHED)

    run, records = written(folder)
    assert run.run_id == (folder / "wandb_id").read_text()
    assert (run.display_name, run.job_type) == ("vo_rope-s3", "vo_rope")
    assert (run.run_group, run.project) == (config.group, "rope_exp")

    stored = {item.key: json.loads(item.value_json) for item in run.config.update}
    # Null values at the top level are not stored.
    assert {key: stored.get(key) for key in config.to_dict()} == config.to_dict()
    facts = {"rotate": "vo", "params": 1234, "tokens_planned": 6 * 4 * 16, "env": ENV}
    assert stored == stored | facts | {"group_sha256": config.group_sha256}

    metrics = [record.metric for record in records if record.HasField("metric")]
    assert any(metric.glob_name == "*" and metric.step_metric == "tokens" for metric in metrics)
    assert any(metric.name == "tokens" and metric.options.hidden for metric in metrics)
    assert history(records) == as_sent(read_metrics(folder))
    assert end_of(records) == (0, "finished", False)


@pytest.mark.parametrize(("status", "exit_code"), [("diverged", 3), ("stopped", 75), ("failed", 1)])
def test_wandb_is_told_how_a_run_ended(write: Write, status: str, exit_code: int) -> None:
    """A stopped run resumes later, so it is marked as preempted; the others are over."""
    config, folder = write(*OFFLINE)
    tracker = Tracker(config, folder)
    if status == "diverged":
        write_json(folder / "result.json", DIVERGED)
    tracker.__exit__(RuntimeError if status == "failed" else None)
    assert end_of(written(folder)[1]) == (exit_code, status, status == "stopped")


def test_the_environment_counts_where_the_config_keeps_a_default(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tags of the environment join our own; tags of the config replace the environment's."""
    given = {"MODE": "offline", "PROJECT": "theirs", "ENTITY": "them", "NAME": "its name"}
    given |= {"NOTES": "because", "TAGS": "x,y", "RUN_GROUP": "g"}
    for name, value in given.items():
        monkeypatch.setenv(f"WANDB_{name}", value)
    ours = ("tracker.project=ours", "tracker.tags=[z]", "tracker.notes=no")
    runs = []
    for number, words in enumerate([(), ours]):
        monkeypatch.setenv("WANDB_DIR", str(tmp_path / f"dir{number}"))
        (tmp_path / f"dir{number}").mkdir()
        config, folder = write("tracker=wandb", *words)
        with Tracker(config, folder):
            pass
        runs.append(written(tmp_path / f"dir{number}")[0])

    theirs, own = runs
    assert (theirs.project, theirs.entity, theirs.display_name) == ("theirs", "them", "its name")
    assert (theirs.notes, theirs.run_group) == ("because", "g")
    assert {"x", "y", "rotate=qk"} <= set(theirs.tags)
    assert (own.project, own.entity, own.notes) == ("ours", "them", "no")
    assert {"z", "rotate=qk"} <= set(own.tags)
    assert "x" not in own.tags


def test_a_run_of_a_sweep_is_named_by_what_is_swept(
    tiny: Callable[..., RunConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name in the environment is the user's own."""
    [job] = admit([tiny()])
    job.title = "qk_rope-optim.lr=0.003-s0"
    for name, expected in (("", job.title), ("its name", None)):
        monkeypatch.setenv("WANDB_NAME", name)
        acquire(job)
        assert read_config(job.folder).tracker.run_name == expected
        job.release()


# -- failures ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("place", "error"),
    [
        ("wandb.init", OSError("no")),
        # Some versions of wandb call sys.exit.
        ("wandb.init", SystemExit(1)),
        ("wandb.Run.log", KeyError("x")),
        ("wandb.Run.finish", KeyError("x")),
    ],
)
def test_a_call_that_raises_is_one_warning(
    write: Write,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    place: str,
    error: BaseException,
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(place, fail)
        config, folder = write(*OFFLINE)
        with Tracker(config, folder) as broken:
            broken.row(row(4))
            broken.row(row(5))
    lines = [line for line in capfd.readouterr().err.splitlines() if "warning" in line]
    [line] = lines
    assert line.startswith(f"warning: the wandb tracker failed ({type(error).__name__}")
    assert line.endswith(f"the curves are in {folder / 'metrics.jsonl'}")


def test_without_a_key_a_run_is_tracked_offline(
    tiny: Callable[..., RunConfig], capsys: pytest.CaptureFixture[str]
) -> None:
    admit([tiny("tracker=wandb")])
    [line] = [line for line in capsys.readouterr().err.splitlines() if "no API key" in line]
    assert "tracking offline" in line
    assert os.environ["WANDB_MODE"] == "offline"


def test_a_tracker_that_is_not_installed_is_refused(tiny: Callable[..., RunConfig]) -> None:
    """The refusal comes before anything is written."""
    config = tiny("tracker=trackio")
    with refused("tracker=trackio: is not installed; `pip install trackio`"):
        admit([config])
    assert not config.folder.exists()


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

    monkeypatch.setitem(sys.modules, "trackio", SimpleNamespace(init=init))  # type: ignore[misc]
    return stored


def test_trackio_is_sent_every_row_once(
    write: Write, trackio: dict[str, dict[int, Any]], capfd: pytest.CaptureFixture[str]
) -> None:
    """The first start dies after row 3; the second resumes from step 2 and repeats row 3."""
    config, folder = write("tracker=trackio", num_rows=1)
    # A power cut may empty this file, and then another id is drawn.
    (folder / "trackio_id").touch()
    first = Tracker(config, folder)
    first.row(row(2))
    first.row(row(3))

    write("tracker=trackio", num_rows=2)
    with Tracker(config, folder) as second:
        second.row(row(3))
        second.row(row(4))
    assert capfd.readouterr().err == ""
    [[name, rows]] = trackio.items()
    drawn = (folder / "trackio_id").read_text()
    assert (name, len(drawn)) == (f"qk_rope-s0-{drawn}", 16)
    assert list(rows) == [1, 2, 3, 4]
    assert rows[3] == {"tokens": 192, "train/loss": 2.0, "val/loss": 4.5}


# -- real runs -------------------------------------------------------------------------------------

KEY = "c0ffee" * 6 + "c0ff"  # as long as a real one
SECRETS = {
    "WANDB_API_KEY": KEY,
    "HF_TOKEN": "canary0" * 5,
    "AWS_SECRET_ACCESS_KEY": "canary1" * 5,
}


def tracked(tmp_path: Path, *words: str, **environment: str) -> Completed:
    """Run train.py tracker=wandb in `tmp_path / "run"`, with secrets and without a server."""
    own = {"HOME": str(tmp_path), "WANDB_BASE_URL": "http://127.0.0.1:9", **SECRETS}
    words = (*words, "tracker=wandb", f"run.dir={tmp_path / 'run'}")
    return train(*words, cwd=tmp_path, **own | environment)


def test_an_offline_run_is_the_same_and_holds_no_secret(
    whole: tuple[Path, list[str]], tmp_path: Path
) -> None:
    """Secrets come from the environment or the command line; cache and wandb files count, too."""
    folder, command = whole
    command = [*command, f"data.cache_dir={tmp_path / 'cache'}", "tracker.mode=offline"]
    assert "warning" not in tracked(tmp_path, *command).stderr
    assert_same_run(folder, tmp_path / "run")
    assert history(recorded(tmp_path / "run")) == as_sent(read_metrics(tmp_path / "run"))

    for override in ("tracker.api_key=", "+tracker.api_key="):
        assert_refused(tracked(tmp_path, *command, f"{override}{'canary2' * 5}"))
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert any(path.suffix == ".wandb" for path in written)
    assert any(path.is_relative_to(tmp_path / "cache") for path in written)
    for path in written:
        content = path.read_bytes()
        assert KEY.encode() not in content, path
        assert b"canary" not in content, path
