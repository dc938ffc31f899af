"""Tests of a rank's process: its imports, its world, env.json, and its exit code."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import Mock, call

import pytest
from support.configs import REPOSITORY
from support.refused import refused
from support.trainers import Make

from rope_exp.config import RunConfig
from rope_exp.errors import CheckpointError, ConfigError, DataError, LawError, run_command
from rope_exp.folder import read_env, step_folder
from rope_exp.worker import describe_end, open_rank_data, record_start


def test_a_rank_listens_before_it_imports_torch() -> None:
    """Otherwise a signal in the first seconds would end it without exit code 75."""
    script = "import sys, rope_exp.worker; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.parametrize(
    ("is_main", "is_first_here"), [(True, True), (False, True), (False, False)]
)
def test_one_rank_of_each_machine_hashes_the_corpus(
    monkeypatch: pytest.MonkeyPatch, is_main: bool, is_first_here: bool
) -> None:
    """The others wait for it, since hashing may take minutes."""
    calls = Mock()
    monkeypatch.setattr("rope_exp.worker.open_prepared", calls.open)
    accelerator = Mock(is_local_main_process=is_first_here)
    parallel = Mock(is_main=is_main, accelerator=accelerator, wait=calls.wait)
    config = RunConfig()
    open_rank_data(config, Path("corpus"), parallel)
    opened = call.open(Path("corpus"), config.data, verifies=is_first_here)
    assert calls.mock_calls == [opened, call.wait()]


def test_text_without_a_corpus_names_the_cause() -> None:
    """A dispatcher that an older version started hands no corpus to a rank of this one."""
    with refused(
        "was given no prepared corpus: rope_exp was updated", "same command", by=DataError
    ):
        open_rank_data(RunConfig(), None, Mock())


NO_GPU = "launch.device=cuda: torch finds no such device here"


@pytest.mark.parametrize(
    ("arguments", "backend", "words"),
    [
        pytest.param("'cuda', 'bf16', 1", "no", NO_GPU, marks=pytest.mark.torture),
        ("'cpu', 'fp32', 1", "inductor", "ACCELERATE_DYNAMO_BACKEND=INDUCTOR: must be unset"),
    ],
)
def test_another_world_than_asked_for_is_refused(arguments: str, backend: str, words: str) -> None:
    """A new process is needed, as accelerate reads its environment once; -O removes asserts."""
    script = f"from rope_exp.parallel import Parallel; Parallel({arguments})"
    changes = {"CUDA_VISIBLE_DEVICES": "", "ACCELERATE_DYNAMO_BACKEND": backend}
    done = subprocess.run(
        [sys.executable, "-O", "-c", script],
        env=os.environ | changes,
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
    )
    assert f"ConfigError: {words}" in done.stderr


def test_a_stopped_run_names_a_checkpoint_that_is_there(tmp_path: Path) -> None:
    """A run that was stopped before its first step has none."""
    assert "checkpoint" not in describe_end(tmp_path, "stopped")
    step_folder(tmp_path / "checkpoints", 14).mkdir(parents=True)
    assert f"its checkpoint of step 14 is in {tmp_path}" in describe_end(tmp_path, "stopped")


def test_what_changed_since_the_last_start_is_noted(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only of a run that goes on from a checkpoint: otherwise nothing of the old start is left."""
    trainer = make("run")
    facts: dict[str, Any] = {"device": "a CPU", "torch": "2.9", "num_threads": 1, "git": None}
    monkeypatch.setattr("rope_exp.worker.machine_environment", lambda device: dict(facts))
    record_start(trainer, {"norm": 0.0})
    first = read_env(trainer.folder)
    assert first["marks"] == []
    assert first["params"] == trainer.num_parameters
    assert first["world_size"] == 1
    assert first["certificate"] == {"norm": 0.0}
    assert len(first["started"]) == 1

    facts["torch"] = "2.10"
    record_start(trainer, {})
    anew = read_env(trainer.folder)
    assert anew["marks"] == []
    assert anew["earlier_git"] == []

    trainer.step = 3
    facts["torch"] = "2.11"
    facts["git"] = {"commit": "0" * 40, "dirty": False}
    record_start(trainer, {})
    second = read_env(trainer.folder)
    record_start(trainer, {})
    third = read_env(trainer.folder)
    marks = ["went on with torch 2.11 after 2.10", "went on with git 0000000000 after None"]
    assert second["marks"] == marks
    assert third["marks"] == marks
    assert len(third["started"]) == 4
    assert third["earlier_git"] == [None]


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (ConfigError("train.lr", 0, "must be above 0"), 2, "train.lr=0: must be above 0"),
        (CheckpointError("does not verify"), 2, "does not verify"),
        (DataError("no network"), 1, "no network"),
        (LawError("the rotation is wrong"), 1, "the rotation is wrong"),
        (OSError(12, "Cannot allocate memory"), 1, "[Errno 12] Cannot allocate memory"),
    ],
)
def test_what_is_no_bug_ends_in_one_sentence(
    error: Exception, code: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(Mock(side_effect=error)) == code
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {words}")


def test_a_bug_keeps_its_traceback() -> None:
    with pytest.raises(RuntimeError, match="a bug"):
        run_command(Mock(side_effect=RuntimeError("a bug")))
