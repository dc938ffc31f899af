"""Whatever fails at wandb stays there: a run ends like one without a tracker, with one warning.

wandb is the real package in real processes, offline or against a stand-in for its servers.
"""

import os
import shutil
import signal
import subprocess
from collections.abc import Callable
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

from rope_exp.config.run import RunConfig
from rope_exp.run import tracker
from rope_exp.run.metrics import read_metrics
from rope_exp.run.tracker import mirrored


def test_none_starts_nothing_and_writes_nothing(
    tiny: Callable[..., RunConfig], tmp_path: Path
) -> None:
    with mirrored(tiny(), tmp_path):
        assert not Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (None, "FileNotFoundError"),
        ("exit 3", "its process ended with exit code 3"),
        ("exec sleep 60", "its process ended with SIGKILL"),
    ],
    ids=["cannot start", "breaks", "hangs"],
)
def test_a_mirror_that_breaks_or_hangs_is_one_warning(
    tiny: Callable[..., RunConfig],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    script: str | None,
    reason: str,
) -> None:
    python = tmp_path / "python"
    if script:
        python.write_text(f"#!/bin/sh\n{script}\n")
        python.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(python))
    monkeypatch.setattr(tracker, "KILL_SECONDS", 1)
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    with mirrored(tiny("tracker=wandb"), tmp_path):
        assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == blocked
    stderr = capsys.readouterr().err
    assert stderr.startswith(f"{WARNING}{reason}")
    assert stderr.count("\n") == 1


def test_a_host_that_cannot_be_reached_costs_a_warning(
    untracked: tuple[Path, list[str]], tmp_path: Path
) -> None:
    folder, command = untracked
    stderr = Tracked(tmp_path, command, WANDB_BASE_URL="http://127.0.0.1:9").finish()
    assert_one_warning(stderr, "wandb was not done 5 s after the run")
    assert_same_run(folder, tmp_path / "run")


@pytest.mark.torture
def test_a_host_that_never_answers_costs_a_warning(
    untracked: tuple[Path, list[str]], tmp_path: Path, wandb_server: WandbServer
) -> None:
    folder, command = untracked
    wandb_server.answers = "never"
    stderr = Tracked(tmp_path, command, WANDB_BASE_URL=wandb_server.address).finish()
    assert_one_warning(stderr, "wandb was not done 5 s after the run")
    assert_same_run(folder, tmp_path / "run")


def test_a_host_that_is_gone_in_the_middle_costs_a_warning(
    untracked: tuple[Path, list[str]], tmp_path: Path, wandb_server: WandbServer
) -> None:
    folder, command = untracked
    tracked = Tracked(tmp_path, command, WANDB_BASE_URL=wandb_server.address)
    with tracked.held(until=lambda: wandb_server.histories):
        wandb_server.answers = "die"
    assert_one_warning(tracked.finish(), "wandb was not done 5 s after the run")
    assert_same_run(folder, tmp_path / "run")


def test_a_wrong_key_costs_a_warning(
    untracked: tuple[Path, list[str]], tmp_path: Path, wandb_server: WandbServer
) -> None:
    folder, command = untracked
    wandb_server.answers = "refuse"
    assert_one_warning(
        Tracked(tmp_path, command, WANDB_BASE_URL=wandb_server.address).finish(), "401"
    )
    assert_same_run(folder, tmp_path / "run")


@pytest.mark.parametrize(
    ("key", "reason"), [("", "No API key configured"), ("short", "WANDB_API_KEY invalid")]
)
@pytest.mark.torture
def test_no_key_and_half_a_key_cost_a_warning(
    untracked: tuple[Path, list[str]],
    tmp_path: Path,
    wandb_server: WandbServer,
    key: str,
    reason: str,
) -> None:
    folder, command = untracked
    tracked = Tracked(tmp_path, command, WANDB_BASE_URL=wandb_server.address, WANDB_API_KEY=key)
    assert_one_warning(tracked.finish(), reason)
    assert_same_run(folder, tmp_path / "run")


@pytest.mark.torture
def test_a_key_that_is_revoked_in_the_middle_costs_a_warning(
    untracked: tuple[Path, list[str]], tmp_path: Path, wandb_server: WandbServer
) -> None:
    """wandb raises nothing then: it prints, and its finish() returns as if all were well."""
    folder, command = untracked
    tracked = Tracked(tmp_path, command, WANDB_BASE_URL=wandb_server.address)
    with tracked.held(until=lambda: wandb_server.histories):
        wandb_server.answers = "refuse"
    assert_one_warning(tracked.finish(), "Fatal error while uploading data")
    assert_same_run(folder, tmp_path / "run")


@pytest.mark.torture
def test_wandbs_own_process_killed_costs_a_warning(
    untracked: tuple[Path, list[str]], tmp_path: Path
) -> None:
    folder, command = untracked
    tracked = Tracked(tmp_path, [*command, "tracker.mode=offline"])
    with tracked.held(until=lambda: list((tmp_path / "run").rglob("*.wandb"))) as processes:
        os.kill(processes["wandb"], signal.SIGKILL)
    assert_one_warning(
        tracked.finish(), "Connection", "Broken pipe", "HandleAbandoned", "MailboxClosed"
    )
    assert_same_run(folder, tmp_path / "run")


@pytest.mark.torture
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_mirror_that_is_told_to_stop_sees_its_run_to_the_end(
    untracked: tuple[Path, list[str]], tmp_path: Path, number: signal.Signals
) -> None:
    """Schedulers tell every process of a job. (wandb's own listens, and ends: the test above.)"""
    folder, command = untracked
    tracked = Tracked(tmp_path, [*command, "tracker.mode=offline"])
    with tracked.held(until=lambda: list((tmp_path / "run").rglob("*.wandb"))) as processes:
        os.kill(processes["mirror"], number)
    assert "warning" not in tracked.finish()
    assert history(recorded(tmp_path / "run")) == as_sent(read_metrics(tmp_path / "run"))
    assert_same_run(folder, tmp_path / "run")


@pytest.mark.torture
def test_a_mirror_that_stands_still_is_killed(
    untracked: tuple[Path, list[str]], tmp_path: Path
) -> None:
    folder, command = untracked
    tracked = Tracked(tmp_path, [*command, "tracker.mode=offline"])
    with tracked.held(until=lambda: list((tmp_path / "run").rglob("*.wandb"))) as processes:
        os.kill(processes["mirror"], signal.SIGSTOP)
    assert_one_warning(tracked.finish(), "its process ended with SIGKILL")
    assert_same_run(folder, tmp_path / "run")


@pytest.mark.parametrize("size", ["4k", pytest.param("64k", marks=pytest.mark.torture)])
def test_a_full_disk_costs_a_warning(
    untracked: tuple[Path, list[str]], tmp_path: Path, size: str
) -> None:
    """wandb itself only logs that, on the same disk; the mirror looks."""
    if subprocess.run(["unshare", "-rm", "true"], capture_output=True).returncode:
        pytest.skip("this machine allows no user namespaces, so no small disk can be mounted")
    folder, command = untracked
    shutil.copytree(folder, tmp_path / "run")
    (tmp_path / "run" / "result.json").unlink()
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "step_00000400")
    (tmp_path / "run" / "wandb").mkdir()
    mount = f'mount -t tmpfs -o size={size} none "$0" && exec "$@"'
    prefix = ("unshare", "-rm", "sh", "-c", mount, str(tmp_path / "run" / "wandb"))
    stderr = Tracked(tmp_path, [*command, "tracker.mode=offline"], prefix=prefix).finish()
    assert_one_warning(stderr, "No space left on device")
    assert_same_run(folder, tmp_path / "run")


# -- secrets ------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["offline", pytest.param("online", marks=pytest.mark.torture)])
def test_no_file_that_a_run_writes_holds_a_secret(
    tiny_overrides: list[str], tmp_path: Path, wandb_server: WandbServer, mode: str
) -> None:
    """From the environment or the command line; in the cache or in wandb's folders, too."""
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
    assert any(path.is_relative_to(tmp_path / "home") for path in written)
    assert any(path.is_relative_to(tmp_path / "cache") for path in written)
    for path in written:
        content = path.read_bytes()
        assert KEY.encode() not in content, path
        assert b"canary" not in content, path
