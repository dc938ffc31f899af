"""Tests that a failure of wandb costs a run one warning, and changes none of its results.

wandb is the real package in real processes, offline or against a fake of its servers.
"""

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from support.runs import assert_same_run
from support.wandb import (
    KEY,
    WARNING,
    Tracked,
    WandbServer,
    as_sent,
    assert_one_warning,
    history,
    recorded,
)

from rope_exp.run.metrics import read_metrics


def test_a_host_that_cannot_be_reached(untracked: tuple[Path, list[str]], tmp_path: Path) -> None:
    folder, command = untracked
    unreachable = {"WANDB_BASE_URL": "http://127.0.0.1:9", "WANDB_INIT_TIMEOUT": "2"}
    stderr = Tracked(tmp_path, command, **unreachable).finish()
    assert_one_warning(stderr, "CommError")
    assert_same_run(folder, tmp_path / "run")


@pytest.mark.torture
def test_a_host_that_is_gone_in_the_middle(
    untracked: tuple[Path, list[str]], tmp_path: Path, wandb_server: WandbServer
) -> None:
    """Training does not wait for the host; the end waits for WANDB_FINISH_TIMEOUT seconds."""
    folder, command = untracked
    tracked = Tracked(tmp_path, command, WANDB_BASE_URL=wandb_server.address)
    with tracked.held(until=lambda: wandb_server.histories):
        wandb_server.answers = "die"
    assert_one_warning(tracked.finish(), "TimeoutError")
    assert_same_run(folder, tmp_path / "run")


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        ("", "no API key"),
        pytest.param("short", "WANDB_API_KEY invalid", marks=pytest.mark.torture),
    ],
)
def test_without_a_key_the_run_is_tracked_offline(
    untracked: tuple[Path, list[str]],
    tmp_path: Path,
    wandb_server: WandbServer,
    key: str,
    reason: str,
) -> None:
    folder, command = untracked
    tracked = Tracked(tmp_path, command, WANDB_BASE_URL=wandb_server.address, WANDB_API_KEY=key)
    stderr = tracked.finish()
    [line] = [line for line in stderr.splitlines() if reason in line]
    assert "tracking offline" in line
    assert WARNING not in stderr
    assert_same_run(folder, tmp_path / "run")
    assert history(recorded(tmp_path / "run")) == as_sent(read_metrics(tmp_path / "run"))


@pytest.mark.torture
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_wandbs_own_process_is_gone(
    untracked: tuple[Path, list[str]], tmp_path: Path, number: signal.Signals
) -> None:
    """wandb prints a traceback at exit."""
    folder, command = untracked
    tracked = Tracked(tmp_path, [*command, "tracker.mode=offline"])
    with tracked.held(until=lambda: list((tmp_path / "run").rglob("*.wandb"))) as processes:
        os.kill(processes["wandb"], number)
    stderr = tracked.finish(may_trace=True)
    assert_one_warning("".join(line for line in stderr.splitlines(True) if WARNING in line), "")
    assert_same_run(folder, tmp_path / "run")


@pytest.mark.torture
def test_a_full_disk_under_wandbs_files(untracked: tuple[Path, list[str]], tmp_path: Path) -> None:
    """wandb may print a traceback at exit; the run's numbers and exit code do not change."""
    if subprocess.run(["unshare", "-rm", "true"], capture_output=True).returncode:
        pytest.skip("this machine allows no user namespaces, so no small disk can be mounted")
    folder, command = untracked
    shutil.copytree(folder, tmp_path / "run")
    (tmp_path / "run" / "result.json").unlink()
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "step_00000400")
    (tmp_path / "run" / "wandb").mkdir()
    mount = 'mount -t tmpfs -o size=4k none "$0" && exec "$@"'
    prefix = ("unshare", "-rm", "sh", "-c", mount, str(tmp_path / "run" / "wandb"))
    Tracked(tmp_path, [*command, "tracker.mode=offline"], prefix=prefix).finish(may_trace=True)
    assert_same_run(folder, tmp_path / "run")


def test_a_killed_run_leaves_no_process_and_resumes_its_curves(
    untracked: tuple[Path, list[str]], tmp_path: Path, wandb_server: WandbServer
) -> None:
    """The server receives every row once and in order, from before and after the kill."""
    folder, command = untracked
    killed = Tracked(tmp_path, command, WANDB_BASE_URL=wandb_server.address)
    with killed.held(until=lambda: any(wandb_server.histories.values())) as processes:
        os.kill(processes["worker"], signal.SIGKILL)
    killed.end()
    assert killed.process.returncode == 1
    [[name, rows]] = wandb_server.histories.items()
    before = [row["_step"] for row in rows]
    assert before
    assert before == list(range(1, len(before) + 1))

    stderr = Tracked(tmp_path, command, WANDB_BASE_URL=wandb_server.address).finish()
    assert WARNING not in stderr
    assert_same_run(folder, tmp_path / "run")
    assert list(wandb_server.histories) == [name]
    assert wandb_server.ends[name] == 0
    expected = as_sent(read_metrics(tmp_path / "run"))
    for key in ("_step", "train/loss", "val/loss"):
        assert [row.get(key) for row in rows] == [row.get(key) for row in expected]


# -- secrets ------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["offline", pytest.param("online", marks=pytest.mark.torture)])
def test_no_file_that_a_run_writes_holds_a_secret(
    tiny_overrides: list[str], tmp_path: Path, wandb_server: WandbServer, mode: str
) -> None:
    """Secrets come from the environment or the command line; cache and wandb files count, too."""
    command = [
        word for word in tiny_overrides if not word.startswith(("run.dir", "data.cache_dir"))
    ]
    command += [f"data.cache_dir={tmp_path / 'cache'}", f"tracker.mode={mode}"]
    secrets = {"HF_TOKEN": "canary0" * 5, "AWS_SECRET_ACCESS_KEY": "canary1" * 5}
    stderr = Tracked(tmp_path, command, WANDB_BASE_URL=wandb_server.address, **secrets).finish()
    assert "warning" not in stderr
    for override in ("tracker.api_key=", "+tracker.api_key="):
        refused = Tracked(tmp_path, [*command, f"{override}{'canary2' * 5}"])
        assert refused.end().count("\n") == 1
        assert refused.process.returncode == 2
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert any(path.suffix == ".wandb" for path in written)
    assert any(path.is_relative_to(tmp_path / "cache") for path in written)
    for path in written:
        content = path.read_bytes()
        assert KEY.encode() not in content, path
        assert b"canary" not in content, path
