"""Tests of a run's env.json."""

from typing import Any

import pytest
from support.trainers import Make

from rope_exp import trainer as record


def test_what_changed_since_the_last_start_is_noted(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = make("run")
    facts: dict[str, Any] = {"device": "a CPU", "torch": "2.9", "num_threads": 1, "git": None}
    monkeypatch.setattr(record, "machine_facts", lambda device: dict(facts))
    first = record.environment(trainer.config, trainer.parallel, {}, params=7)
    assert first["marks"] == []
    assert (first["params"], first["world_size"], len(first["started"])) == (7, 1, 1)

    facts["torch"] = "2.10"
    facts["git"] = {"commit": "0" * 40, "dirty": False}
    second = record.environment(trainer.config, trainer.parallel, first)
    third = record.environment(trainer.config, trainer.parallel, second)
    marks = ["went on with torch 2.10 after 2.9", "went on with git 0000000000 after None"]
    assert third["marks"] == second["marks"] == marks
    assert len(third["started"]) == 3
    assert third["earlier_git"] == [None]
