"""Tests that wandb changes no result of a run, and that none of its files holds a secret.

wandb is the real package in real processes, offline or without a server.
"""

from pathlib import Path

from support.command import assert_refused
from support.runs import Completed, assert_same_run, train
from support.wandb import as_sent, history, recorded

from rope_exp.folder import read_metrics

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


def test_a_host_that_cannot_be_reached(whole: tuple[Path, list[str]], tmp_path: Path) -> None:
    folder, command = whole
    done = tracked(tmp_path, *command, WANDB_INIT_TIMEOUT="2")
    assert done.returncode == 0, done.stderr
    [line] = [line for line in done.stderr.splitlines() if "warning" in line]
    assert line.startswith("warning: the wandb tracker failed (CommError")
    assert_same_run(folder, tmp_path / "run")


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
