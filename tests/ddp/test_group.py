"""Tests that ranks which begin differently are refused; faults/ and end_to_end/ test several."""

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
        group.Group.begin(Mock(), start, Path("run"))
