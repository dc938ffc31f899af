"""Test that the records give every table again, byte for byte."""

import fnmatch
import hashlib
import re
import subprocess
from difflib import unified_diff
from pathlib import Path

import pytest
from golden.kept import FROM_DELETED_CODE
from support.configs import RECORDED, REPOSITORY

from rope_exp.campaign import tables
from rope_exp.report import Report

RESULTS = REPOSITORY / "results"
SUFFIXES = {".csv", ".md", ".tex"}
# The tables that are not committed, as sha256sum writes them. After `make report`, in results/:
# git ls-files -oi --exclude-standard | grep '/.*\.\(csv\|md\|tex\)$' | grep -v '^runs/' |
# LC_ALL=C sort | xargs sha256sum > ../tests/golden/uncommitted.sha256
UNCOMMITTED = Path(__file__).parent / "uncommitted.sha256"
FIGURES = re.compile(rb"!\[[\w-]+\]\(figures/[\w-]+\.svg\)\n\n")
# Written by people.
PROSE = {"README.md", "files.md"}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make the report on all campaigns, without figures, which take most of the time."""
    out = tmp_path_factory.mktemp("results")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Report, "charts", {})
        patch.setattr("vl_convert.vegalite_to_svg", lambda *args, **kwargs: "")
        patch.setattr(tables, "pages_of", lambda tables, runs: {})
        tables.write_campaigns(RECORDED, None, out)
    return out


def tables_in(folder: Path) -> set[str]:
    """Return the names of the tables below a folder that was made."""
    found = (path for path in folder.rglob("*") if path.suffix in SUFFIXES)
    return {str(path.relative_to(folder)) for path in found}


def committed() -> set[str]:
    """Return the names of the committed tables."""
    names = subprocess.check_output(["git", "ls-files"], cwd=RESULTS, text=True).splitlines()
    return {name for name in names if Path(name).suffix in SUFFIXES} - PROSE


def test_every_table_is_made_again(made: Path) -> None:
    patterns = [fnmatch.translate(pattern) for pattern in FROM_DELETED_CODE]
    old = {name for name in committed() if any(re.match(each, name) for each in patterns)}
    names = tables_in(made)
    assert len(old) >= len(FROM_DELETED_CODE)
    assert not old & names, "code makes these again"
    assert committed() - old <= names, "no code makes these"
    for name in sorted(committed() - old):
        before, now = (FIGURES.sub(b"", (folder / name).read_bytes()) for folder in (RESULTS, made))
        lines = unified_diff(before.decode().splitlines(), now.decode().splitlines(), name, "now")
        assert before == now, "\n".join(lines)

    lines = UNCOMMITTED.read_text(encoding="utf-8").splitlines()
    expected = {name: digest for digest, name in (line.split("  ") for line in lines)}
    others = names - committed()
    assert expected == {
        name: hashlib.sha256((made / name).read_bytes()).hexdigest() for name in others
    }
