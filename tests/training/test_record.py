"""Tests of a run's env.json."""

from typing import Any

import pytest
from support.trainers import Make

from rope_exp.folder import read_env
from rope_exp.worker import record_start


def test_what_changed_since_the_last_start_is_noted(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = make("run")
    facts: dict[str, Any] = {"device": "a CPU", "torch": "2.9", "num_threads": 1, "git": None}
    monkeypatch.setattr("rope_exp.worker.machine_facts", lambda device: dict(facts))
    record_start(trainer, {"norm": 0.0})
    first = read_env(trainer.folder)
    assert first["marks"] == []
    assert (first["params"], first["world_size"]) == (trainer.num_parameters, 1)
    assert (first["certificate"], len(first["started"])) == ({"norm": 0.0}, 1)

    facts["torch"] = "2.10"
    facts["git"] = {"commit": "0" * 40, "dirty": False}
    record_start(trainer, {})
    second = read_env(trainer.folder)
    record_start(trainer, {})
    third = read_env(trainer.folder)
    marks = ["went on with torch 2.10 after 2.9", "went on with git 0000000000 after None"]
    assert third["marks"] == second["marks"] == marks
    assert len(third["started"]) == 3
    assert third["earlier_git"] == [None]
