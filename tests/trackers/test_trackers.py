"""Tests of the rows, config, name and final status that a tracker receives from a run.

wandb is the real package, offline or without a server. So is tensorboard: its files are read back.
trackio is a stub with the signatures of its version 0.43.
"""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from support.refused import refused
from support.reports import DIVERGED, FINISHED
from support.runs import Trial, assert_same_run, kill_the_tree, train
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from rope_exp.commands.train import launch
from rope_exp.compose import compose_runs, resolve
from rope_exp.config import RunConfig
from rope_exp.files import write_json
from rope_exp.folder import MetricsWriter, read_metrics
from rope_exp.slurm import run_configs
from rope_exp.sweep import DispatchedRun, admit, run_all
from rope_exp.trackers import trackio as our_trackio
from rope_exp.trackers._base import without_nulls
from rope_exp.trackers.wandb import Tracker

wandb = pytest.importorskip("wandb")
ENV = {"marks": [], "started": ["2026-01-01T00:00:00Z"], "params": 1234, "device": "a chip"}
OFFLINE = ("tracker=wandb", "tracker.mode=offline")

# `write("pe=vo_rope")` is a run in tmp_path/run that has recorded three rows.
Write = Callable[..., tuple[RunConfig, Path]]


@pytest.fixture(autouse=True)
def _fresh_wandb(tmp_path: Path) -> Iterator[None]:
    """Reset wandb as if in a new process, with a home folder that holds no key."""
    with mock.patch.dict(os.environ, HOME=str(tmp_path / "home")):
        yield
        wandb.teardown()


@pytest.fixture
def write(tiny: Callable[..., RunConfig], tmp_path: Path) -> Write:
    def make(*overrides: str, num_rows: int = 3) -> tuple[RunConfig, Path]:
        folder = tmp_path / "run"
        folder.mkdir(exist_ok=True)
        write_json(folder / "env.json", ENV)
        with closing(MetricsWriter(folder)) as writer:
            for step in range(1, num_rows + 1):
                writer.write(row(step))
        return tiny(*overrides), folder

    return make


def row(step: int) -> dict[str, Any]:
    values = {"step": step, "tokens": 64 * step, "train/loss": 5.0 - step, "mfu": None}
    return values | {"val/loss": 4.5} if step == 3 else values


def test_a_run_is_sent_with_its_name_config_and_rows(write: Write) -> None:
    """Null values are not sent."""
    config, folder = write(*OFFLINE, "pe=vo_rope", "seed=3")
    with mock.patch.object(wandb.Run, "log") as log:
        run = Tracker(config, folder).run
    assert [call.kwargs["step"] for call in log.call_args_list] == [1, 2, 3]
    log.assert_called_with({"tokens": 192, "train/loss": 2.0, "val/loss": 4.5}, step=3)
    assert run.id == (folder / "wandb_id").read_text()
    assert run.name == "vo_rope-s3"
    assert run.group == config.group
    assert run.job_type == "vo_rope"
    assert run.project == "rope_exp"
    sent = dict(run.config)
    assert {key: sent.get(key) for key in config.to_dict()} == config.to_dict()
    facts = {"rotate": "vo", "params": 1234, "tokens_planned": 6 * 4 * 16, "env": ENV}
    assert sent == sent | facts | {"group_sha256": config.group_sha256}


@pytest.mark.parametrize(("mode", "resume"), [("online", "allow"), ("offline", None)])
def test_wandb_is_sent_only_the_rows_that_it_lacks(
    write: Write, monkeypatch: pytest.MonkeyPatch, mode: str, resume: str | None
) -> None:
    run = mock.Mock(starting_step=3)
    init = mock.Mock(return_value=run)
    monkeypatch.setattr(wandb, "init", init)
    Tracker(*write("tracker=wandb", f"tracker.mode={mode}"))
    assert [call.kwargs["step"] for call in run.log.call_args_list] == [3]
    assert init.call_args.kwargs["resume"] == resume


@pytest.mark.parametrize(
    ("result", "status", "exit_code"),
    [
        (FINISHED, "finished", 0),
        (DIVERGED, "diverged", 3),
        (None, "stopped", 75),
        (None, "failed", 1),
    ],
)
def test_wandb_learns_how_a_run_ended(
    write: Write, result: Any, status: str, exit_code: int
) -> None:
    """A stopped run resumes later, so it is marked as preempted; the others are over."""
    config, folder = write(*OFFLINE)
    tracker = Tracker(config, folder)
    run = tracker.run
    if result:
        write_json(folder / "result.json", result)
    with mock.patch.multiple(run, mark_preempting=mock.DEFAULT, finish=mock.DEFAULT) as calls:
        tracker.end("failed" if result else status)
    calls["finish"].assert_called_once_with(exit_code=exit_code)
    assert calls["mark_preempting"].called == (status == "stopped")
    assert run.summary["status"] == status
    assert None not in dict(run.summary).values()


def test_the_environment_counts_where_the_config_keeps_a_default(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    variables = {"MODE": "offline", "PROJECT": "theirs", "ENTITY": "them", "NAME": "its name"}
    for name, value in (variables | {"TAGS": "x,y", "RUN_GROUP": "g"}).items():
        monkeypatch.setenv(f"WANDB_{name}", value)
    config, folder = write("tracker=wandb")
    run = Tracker(config, folder).run
    assert run.project == "theirs"
    assert run.entity == "them"
    assert run.name == "its name"
    assert run.group == "g"
    assert run.tags == ("x", "y")

    with mock.patch("wandb.init"):
        Tracker(config.replace("tracker", project="ours"), folder)
    assert os.environ["WANDB_PROJECT"] == "ours"


def test_a_run_of_a_sweep_is_named_by_what_is_swept(tiny: Callable[..., RunConfig]) -> None:
    run = DispatchedRun(resolve(tiny()), title="qk_rope-optim.lr=0.003-s0")
    with mock.patch("subprocess.Popen") as started:
        run.start()
    assert started.call_args.kwargs["env"]["WANDB_NAME"] == run.title


@pytest.mark.parametrize("dispatches", ["here", "by Hydra", "on a cluster"])
def test_a_run_of_a_sweep_has_an_id_of_its_own(
    tiny: Callable[..., RunConfig], monkeypatch: pytest.MonkeyPatch, dispatches: str
) -> None:
    """`wandb agent` sets the id of one run, and the command may be a sweep."""
    monkeypatch.setenv("WANDB_RUN_ID", "from-the-agent")
    runs = [DispatchedRun(resolve(tiny(f"seed={seed}")), exit_code=0) for seed in (0, 1)]
    dispatch = mock.Mock(return_value=(0, runs[:1]))
    monkeypatch.setattr("rope_exp.commands.train.dispatch", dispatch)
    monkeypatch.setattr("rope_exp.slurm.dispatch", dispatch)
    if dispatches == "here":
        run_all(runs)
    elif dispatches == "by Hydra":
        target = "hydra.launcher._target_=hydra_plugins.rope_exp_launcher.RopeExpLauncher"
        composed = compose_runs(["launch.device=cpu", f"++{target}"], multirun=True)
        launch([composed.tree], composed.overrides)
    else:
        run_configs([(runs[0].config, "")])
    with mock.patch("subprocess.Popen") as started:
        DispatchedRun(runs[0].config).start()
    assert "WANDB_RUN_ID" not in started.call_args.kwargs["env"]


def test_the_only_run_of_a_command_keeps_the_id_it_is_given(
    tiny: Callable[..., RunConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_RUN_ID", "from-the-agent")
    with mock.patch("subprocess.Popen") as started:
        DispatchedRun(resolve(tiny())).start()
    assert started.call_args.kwargs["env"]["WANDB_RUN_ID"] == "from-the-agent"


@pytest.mark.parametrize("place", ["wandb.init", "wandb.Run.log", "wandb.Run.finish"])
def test_a_call_that_raises_is_one_warning(
    write: Write, capfd: pytest.CaptureFixture[str], place: str
) -> None:
    """Some versions of wandb call sys.exit."""
    config, folder = write(*OFFLINE)
    with mock.patch(place, side_effect=SystemExit(1)):
        broken = Tracker(config, folder)
        broken.row(row(4))
        broken.row(row(5))
        broken.end("stopped")
    [line] = [line for line in capfd.readouterr().err.splitlines() if "warning" in line]
    assert line.startswith("warning: the wandb tracker failed (SystemExit: 1); the curves are in ")


def test_without_a_key_a_run_is_tracked_offline(
    write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    """The check logs in, which reads the environment before the run sets it."""
    config, folder = write("tracker=wandb")
    Tracker.check(config.tracker)
    assert "wandb: no API key; tracking offline" in capsys.readouterr().err
    assert os.environ["WANDB_MODE"] == "offline"
    assert Tracker(config, folder).run.project == "rope_exp"


@pytest.mark.parametrize(
    ("name", "has_folder"), [("trackio", False), ("trackio", True), ("tensorboard", False)]
)
def test_a_tracker_that_is_not_installed_is_refused(
    tiny: Callable[..., RunConfig],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    has_folder: bool,
) -> None:
    """An empty folder of its name, such as one for its files, is no package."""
    monkeypatch.syspath_prepend(tmp_path)
    if has_folder:
        (tmp_path / name).mkdir()
    else:
        monkeypatch.setitem(sys.modules, name, None)
    config = tiny(f"tracker={name}")
    with refused(f"tracker={name}: is not installed; `pip install {name}`"):
        admit([config])
    assert not config.folder.exists()


def test_trackio_is_sent_every_row_once(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first start dies after row 3; the second resumes from step 2 and repeats row 3."""
    init = mock.Mock(side_effect=lambda **_: mock.Mock(_next_step=0))
    monkeypatch.setitem(sys.modules, "trackio", SimpleNamespace(init=init))
    config, folder = write("tracker=trackio", num_rows=1)
    # A power cut may empty this file, and then another id is drawn.
    (folder / "trackio_id").touch()
    first = our_trackio.Tracker(config, folder)
    for step in (2, 3):
        first.row(row(step))
    assert [call.kwargs["step"] for call in first.run.log.call_args_list] == [1, 2, 3]

    init.side_effect = lambda **_: mock.Mock(_next_step=4)
    write("tracker=trackio", num_rows=2)
    second = our_trackio.Tracker(config, folder)
    for step in (3, 4):
        second.row(row(step))
    second.run.log.assert_called_once_with({"tokens": 256, "train/loss": 1.0}, step=4)
    run = second.run
    second.end("stopped")
    run.finish.assert_called_once_with()
    begun, resumed = (call.kwargs for call in init.call_args_list)
    assert begun == resumed
    assert begun["name"] == f"qk_rope-s0-{(folder / 'trackio_id').read_text()}"
    assert begun["project"] == "rope_exp"
    assert begun["resume"] == "allow"


def test_tensorboard_has_every_row_once(whole: tuple[Path, list[str]], tmp_path: Path) -> None:
    """The run is killed past its checkpoint at step 20, so rows that it has sent are repeated."""
    folder, command = whole
    command = [*command, "tracker=tensorboard"]
    trial = Trial(command=tuple(command), folder=tmp_path / "run", undisturbed=folder)
    process = trial.start(rows=25)
    kill_the_tree(process.pid)
    process.communicate()
    trial.assert_goes_on()

    events = EventAccumulator(str(trial.folder / "tensorboard")).Reload()
    sent = []
    for name in events.Tags()["scalars"]:
        sent += [(f"{name} at {event.step}", event.value) for event in events.Scalars(name)]
    recorded: dict[str, float] = {}
    for row in read_metrics(trial.folder):
        step = row.pop("step")
        recorded |= {f"{name} at {step}": value for name, value in without_nulls(row).items()}
    assert len(sent) == len(recorded)
    assert dict(sent) == pytest.approx(recorded)

    for name, words in (("config", '"seed": 0'), ("result", '"status": "finished"')):
        text = events.Tensors(f"{name}/text_summary")[-1]
        assert words in text.tensor_proto.string_val[0].decode()


def test_an_offline_run_is_the_same_and_holds_no_secret(
    whole: tuple[Path, list[str]], tmp_path: Path
) -> None:
    """Secrets come from the environment; the cache's and wandb's files count, too."""
    key = "c0ffee" * 6 + "c0ff"  # as long as a real one
    secrets = {"WANDB_API_KEY": key, "HF_TOKEN": "canary0" * 5}
    folder, command = whole
    command = [*command, *OFFLINE, f"run.dir={tmp_path / 'run'}"]
    command += [f"data.cache_dir={tmp_path / 'cache'}"]
    assert "warning" not in train(*command, cwd=tmp_path, **secrets).stderr
    assert_same_run(folder, tmp_path / "run")
    [path] = (tmp_path / "run").rglob("*.wandb")
    stored = path.read_bytes()
    losses = [str(row["train/loss"]).encode() for row in read_metrics(tmp_path / "run")]
    # The border between two blocks of the file may split one.
    assert sum(loss in stored for loss in losses) >= len(losses) - 1 > 0

    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert any(path.is_relative_to(tmp_path / "cache") for path in written)
    for path in written:
        content = path.read_bytes()
        assert key.encode() not in content, path
        assert b"canary" not in content, path
