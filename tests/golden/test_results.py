"""Test that the records give every table again, byte for byte."""

import hashlib
import re
import subprocess
from difflib import unified_diff
from fnmatch import fnmatch
from pathlib import Path

import pytest
from support.configs import RECORDED, REPOSITORY

from rope_exp.campaign import tables
from rope_exp.report import Report

RESULTS = REPOSITORY / "results"
# The tables that are not committed, as sha256sum writes them. After `make report`, in results/:
# git ls-files -oi --exclude-standard | grep '/.*\.\(csv\|md\|tex\)$' | grep -v '^runs/' |
# LC_ALL=C sort | xargs sha256sum > ../tests/golden/uncommitted.sha256
UNCOMMITTED = Path(__file__).parent / "uncommitted.sha256"
FIGURES = re.compile(rb"!\[[\w-]+\]\(figures/[\w-]+\.svg\)\n\n")
# Written by people.
PROSE = {"README.md", "files.md"}
# Results of code that was deleted after v0.2.0, as patterns in which * matches / as well.
FROM_DELETED_CODE = (
    *("*/changes.csv", "*/changes.md", "bench/laws.md", "cost.md", "lead_26m/simulated.csv"),
    *("ngrams.md", "nine_26m/questions.md", "nine_26m/simulated_*.csv", "noise/*.csv"),
    *("noise/noise.md", "outside/*.csv", "outside/*.md", "replicates.md", "scaling/scaling.md"),
)


def is_table(name: str) -> bool:
    return name.endswith((".csv", ".md", ".tex"))


def test_every_table_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Without figures, which take most of the time.
    monkeypatch.setattr(Report, "charts", {})
    monkeypatch.setattr("vl_convert.vegalite_to_svg", lambda *args, **kwargs: "")
    monkeypatch.setattr(tables, "pages_of", lambda tables, runs: {})
    tables.write_campaigns(RECORDED, None, tmp_path)
    made = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")}

    names = subprocess.check_output(["git", "ls-files"], cwd=RESULTS, text=True).splitlines()
    committed = {*filter(is_table, names)} - PROSE
    old = {name for name in committed for pattern in FROM_DELETED_CODE if fnmatch(name, pattern)}
    assert len(old) >= len(FROM_DELETED_CODE)
    assert not old & made, "code makes these again"
    assert committed - old <= made, "no code makes these"
    for name in sorted(committed - old):
        before, now = (
            FIGURES.sub(b"", (folder / name).read_bytes()) for folder in (RESULTS, tmp_path)
        )
        lines = unified_diff(before.decode().splitlines(), now.decode().splitlines(), name, "now")
        assert before == now, "\n".join(lines)

    lines = UNCOMMITTED.read_text(encoding="utf-8").splitlines()
    assert dict(line.split("  ")[::-1] for line in lines) == {
        name: hashlib.sha256((tmp_path / name).read_bytes()).hexdigest()
        for name in filter(is_table, made - committed)
    }
