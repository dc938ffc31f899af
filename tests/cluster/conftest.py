"""What tests on a disk of their own share: a campaign of two short runs, undisturbed."""

from collections.abc import Callable
from pathlib import Path

import pytest
from support.campaigns import SHORT, run_campaign_command, write_campaign


@pytest.fixture(scope="session")
def make_home(corpus: Path) -> Callable[[Path], Path]:
    """Make the folder in which the campaign is started."""

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
    """The folder of the campaign that nothing disturbed."""
    home = make_home(tmp_path_factory.mktemp("quiet") / "home")
    done = run_campaign_command(home, ROPE_EXP_CACHE=str(cache))
    assert done.returncode == 0, done.stderr
    return home
