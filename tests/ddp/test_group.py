"""Tests that ranks which begin differently are refused; faults/ and end_to_end/ test several."""

from datetime import timedelta
from pathlib import Path
from unittest.mock import Mock

import pytest
from support.refused import refused

from rope_exp import parallel as group


@pytest.mark.parametrize("key", ["step", "data_sha256"])
def test_ranks_that_begin_differently_are_refused(
    monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    """This happens if hosts do not share a disk. The error names the rank and both values."""
    start = {"step": 3, "data_sha256": "ours"}
    monkeypatch.setattr(group, "gather_object", lambda own: [*own, *own, start | {key: "other"}])
    with refused("process 2 begins", f"{key}: ", " -> other", "see the same "):
        group.RankGroup.check_same_start(Mock(), start, Path("run"))


def test_ranks_may_wait_for_hours_but_not_for_a_lost_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0 answers probes alone; gloo's 30 minutes would end a large run each time."""
    new_group = Mock()
    monkeypatch.setattr("torch.distributed.new_group", new_group)
    monkeypatch.setattr("threading.Thread", Mock())
    group.RankGroup()
    waits = [call.kwargs["timeout"] for call in new_group.call_args_list]
    assert max(waits) >= timedelta(hours=12)
    assert min(waits) <= timedelta(minutes=5)
