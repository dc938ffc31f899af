"""Fixtures for the tests of the tracker."""

from pathlib import Path

import pytest
from support.configs import TINY
from support.runs import train


@pytest.fixture(scope="session")
def untracked(
    tmp_path_factory: pytest.TempPathFactory, corpus: Path, cache: Path
) -> tuple[Path, list[str]]:
    """Return the folder of a run without a tracker, and its command line without run.dir."""
    folder = tmp_path_factory.mktemp("untracked")
    command = [*TINY, f"data.path={corpus}", "data.holdout_fraction=0.2", f"data.cache_dir={cache}"]
    command += ["train.num_steps=20", "train.save_every=10", "train.eval_every=10", "pe=vo_rope"]
    done = train(*command, f"run.dir={folder / 'run'}", cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder / "run", command
