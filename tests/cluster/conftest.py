"""Fixtures of a campaign of two short runs, for the tests on a disk of their own."""

from collections.abc import Callable
from pathlib import Path

import pytest
from support.campaigns import SHORT, run_campaign_command, write_campaign


@pytest.fixture(scope="session")
def make_home(corpus: Path) -> Callable[[Path], Path]:
    """Return a function that makes the folder in which the campaign starts."""

    def make(folder: Path) -> Path:
        folder.mkdir()
        (folder / "corpus").symlink_to(corpus)
        write_campaign(folder, fixed=list(SHORT))
        return folder

    return make


@pytest.fixture(scope="session")
def quiet(
    tmp_path_factory: pytest.TempPathFactory, make_home: Callable[[Path], Path], cache: Path
) -> Path:
    """Return the folder of the undisturbed campaign."""
    home = make_home(tmp_path_factory.mktemp("quiet") / "home")
    done = run_campaign_command(home, ROPE_EXP_CACHE=str(cache))
    assert done.returncode == 0, done.stderr
    return home
