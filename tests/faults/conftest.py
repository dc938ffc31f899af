"""What faults share: a run to disturb, and the same one undisturbed."""

from pathlib import Path

import pytest
from support.runs import Trial


@pytest.fixture
def trial(whole: tuple[Path, list[str]], tmp_path: Path) -> Trial:
    """The run of 60 steps, to be disturbed in this test's own folder."""
    undisturbed, command = whole
    return Trial(command=tuple(command), folder=tmp_path / "run", undisturbed=undisturbed)
