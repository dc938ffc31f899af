"""Test that the records give every table that is not frozen again, byte for byte."""

import hashlib
import subprocess
from difflib import unified_diff
from pathlib import Path

import tables

from rope_exp.campaign.tables import campaign_files

# The tables that are not committed, as sha256sum writes them, by NAME/FILE.
UNCOMMITTED = Path(__file__).parent / "uncommitted.sha256"


def committed() -> dict[str, Path]:
    """Return every committed table by its path below paper/results/."""
    command = ["git", "ls-files", "*.csv", "*.md", "*.tex"]
    names = subprocess.check_output(command, cwd=tables.RESULTS, text=True).splitlines()
    return {name: tables.RESULTS / name for name in names}


def test_every_other_table_is_made_again() -> None:
    files = campaign_files(tables.RECORDS, tables.TESTED, tables.MAKERS, figures=False)
    frozen = {tables.PAPER.parent / path for path in tables.frozen()}
    live = {name: path for name, path in committed().items() if path not in frozen}
    assert live
    assert not {*live} - {*files}, "no code makes these"
    for name, path in sorted(live.items()):
        before, now = path.read_bytes(), files[name]
        changes = unified_diff(before.decode().splitlines(), now.decode().splitlines(), name, "now")
        assert before == now, "\n".join(changes)

    lines = UNCOMMITTED.read_text(encoding="utf-8").splitlines()
    assert dict(line.split("  ")[::-1] for line in lines) == {
        name: hashlib.sha256(files[name]).hexdigest() for name in {*files} - {*live}
    }
