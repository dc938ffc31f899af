"""Tests that a failure of wandb costs a run one warning, and changes none of its results.

wandb is the real package in real processes, offline or without a server.
"""

from pathlib import Path

from support.runs import assert_same_run
from support.wandb import KEY, WARNING, as_sent, history, recorded, tracked

from rope_exp.folder import read_metrics


def test_a_host_that_cannot_be_reached(whole: tuple[Path, list[str]], tmp_path: Path) -> None:
    folder, command = whole
    done = tracked(tmp_path, command, WANDB_INIT_TIMEOUT="2")
    assert done.returncode == 0, done.stderr
    [line] = [line for line in done.stderr.splitlines() if "warning" in line]
    assert line.startswith(f"{WARNING}CommError")
    assert_same_run(folder, tmp_path / "run")


def test_without_a_key_the_run_is_tracked_offline(
    whole: tuple[Path, list[str]], tmp_path: Path
) -> None:
    folder, command = whole
    done = tracked(tmp_path, command, WANDB_API_KEY="")
    [line] = [line for line in done.stderr.splitlines() if "no API key" in line]
    assert "tracking offline" in line
    assert WARNING not in done.stderr
    assert_same_run(folder, tmp_path / "run")
    assert history(recorded(tmp_path / "run")) == as_sent(read_metrics(tmp_path / "run"))


def test_no_file_that_a_run_writes_holds_a_secret(
    tiny_overrides: list[str], tmp_path: Path
) -> None:
    """Secrets come from the environment or the command line; cache and wandb files count, too."""
    command = [
        word for word in tiny_overrides if not word.startswith(("run.dir", "data.cache_dir"))
    ]
    command += [f"data.cache_dir={tmp_path / 'cache'}", "tracker.mode=offline"]
    secrets = {"HF_TOKEN": "canary0" * 5, "AWS_SECRET_ACCESS_KEY": "canary1" * 5}
    assert "warning" not in tracked(tmp_path, command, **secrets).stderr
    for override in ("tracker.api_key=", "+tracker.api_key="):
        refused = tracked(tmp_path, [*command, f"{override}{'canary2' * 5}"])
        assert refused.stderr.count("\n") == 1
        assert refused.returncode == 2
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert any(path.suffix == ".wandb" for path in written)
    assert any(path.is_relative_to(tmp_path / "cache") for path in written)
    for path in written:
        content = path.read_bytes()
        assert KEY.encode() not in content, path
        assert b"canary" not in content, path
