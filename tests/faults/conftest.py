"""Fixture of a run to disturb, beside the same run undisturbed."""

from pathlib import Path

import pytest
from support.runs import Trial


@pytest.fixture
def trial(whole: tuple[Path, list[str]], tmp_path: Path) -> Trial:
    """Return the run of 60 steps, to be disturbed in the test's own folder."""
    undisturbed, command = whole
    return Trial(command=tuple(command), folder=tmp_path / "run", undisturbed=undisturbed)
