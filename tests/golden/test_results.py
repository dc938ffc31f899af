"""Test that the records give every committed table again, byte for byte."""

import subprocess
from difflib import unified_diff
from fnmatch import fnmatch
from pathlib import Path

import pytest
from golden.kept import FROM_DELETED_CODE
from support.configs import RECORDED, REPOSITORY

from rope_exp.report import command, gather
from rope_exp.studies import rates, settings

RESULTS = REPOSITORY / "results"
SUFFIXES = {".csv", ".md", ".tex"}
# Written by people.
PROSE = {"README.md", "exploration.md", "files.md"}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make the report on all campaigns, with figures named and not drawn."""
    out = tmp_path_factory.mktemp("results")
    with pytest.MonkeyPatch.context() as patch:
        for module in (rates, settings):
            patch.setattr(module, "svg_of", lambda spec: b"")
        patch.setattr(gather, "drawn", lambda draw, report: None if draw(report) is None else b"")
        patch.setattr(command, "page", lambda tables, runs: b"")
        command.write_campaigns(RECORDED, None, out)
    return out


def tables_in(folder: Path) -> set[str]:
    """Return the committed or made tables of a folder."""
    if folder == RESULTS:
        names = subprocess.check_output(["git", "ls-files"], cwd=folder, text=True).splitlines()
    else:
        names = [str(path.relative_to(folder)) for path in folder.rglob("*")]
    return {name for name in names if Path(name).suffix in SUFFIXES and "records" not in name}


def test_every_committed_table_is_made_again(made: Path) -> None:
    committed = tables_in(RESULTS) - PROSE
    old = {
        name for name in committed if any(fnmatch(f"results/{name}", one) for one in FROM_DELETED_CODE)
    }
    changed = {name for name in committed - old if not (made / name).exists()}
    assert not changed, "no code makes these"
    assert not {name for name in old if (made / name).exists()}, "code makes these again"

    for name in sorted(committed - old):
        before, now = (
            (folder / name).read_bytes().decode().splitlines() for folder in (RESULTS, made)
        )
        assert before == now, "\n".join(unified_diff(before, now, f"results/{name}", "now"))
        assert (RESULTS / name).read_bytes() == (made / name).read_bytes(), name
