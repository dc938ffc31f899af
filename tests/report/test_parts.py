"""Tests of what files add to a report: the docs' note, probe and figure, and their mistakes."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from support.configs import RECORDED, REPOSITORY
from support.records import report_on, runs_of

from rope_exp import report as reports
from rope_exp.probes import shift
from rope_exp.report import Part, build

PAGE = (REPOSITORY / "docs" / "extending.md").read_text(encoding="utf-8")
REPORTED = """
import sys
from dataclasses import replace
from pathlib import Path

from rope_exp.campaign.records import read_records
from rope_exp.report import build, files_of

records = read_records(Path(sys.argv[1]), "english")
runs = [run for run in records if run.row in ("qk_rope", "vo_rope") and run.config.seed < 2]
probes = {"entropy": {"layers": [0, 1], "nats": [0.25, 1.25]}}
asked = [replace(run, probes=probes) if run.row == "vo_rope" else run for run in runs]
for name, content in files_of(build(asked, ["pe"])).items():
    path = Path("out", name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
"""


def example(docstring: str) -> str:
    """Return the file of the page that begins with a docstring."""
    [text] = re.findall(rf'^    """{docstring}"""\n(?:    .*\n|\n)+', PAGE, re.MULTILINE)
    return re.sub("^    ", "", text, flags=re.MULTILINE)


def test_a_note_a_probe_and_a_figure_are_a_file_each(tmp_path: Path) -> None:
    """The examples of docs/extending.md, in a package that does not know them."""
    shutil.copytree(REPOSITORY / "rope_exp", tmp_path / "rope_exp")
    added = {
        "notes/slowest.py": "A note on the slowest run.",
        "probes/entropy.py": "The entropy of attention weights, by layer.",
        "figures/losses.py": "The losses of rows.",
    }
    for path, docstring in added.items():
        (tmp_path / "rope_exp" / path).write_text(example(docstring), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-c", REPORTED, str(RECORDED)],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(tmp_path), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr

    lines = (tmp_path / "out" / "table.md").read_text(encoding="utf-8").splitlines()
    [slowest] = [number for number, line in enumerate(lines) if line.startswith("- Slowest run: ")]
    # The probe's order is greater than the note's.
    assert lines.index("- VO-RoPE: 0.75 nats.") > slowest
    assert lines.index("![losses](figures/losses.svg)") > lines.index("![grid](figures/grid.svg)")
    assert (tmp_path / "out" / "figures" / "losses.svg").read_bytes().startswith(b"<svg")
    numbers = (tmp_path / "out" / "probes.csv").read_text(encoding="utf-8").splitlines()
    assert [line for line in numbers if "entropy" in line] == [
        "vo_rope,entropy,0,2,0.250000,0.000000",
        "vo_rope,entropy,1,2,1.250000,0.000000",
    ]


def test_a_misspelled_member_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A member of another name ends in an error, and so does a file without its part."""
    with pytest.raises(TypeError, match="noets"):
        Part(noets=lambda report: [])  # type: ignore[call-arg]
    nine = report_on("english", "qk_rope", "nope", seeds=(0,))
    with pytest.raises(AttributeError, match="noets"):
        nine.texts("noets")  # type: ignore[arg-type]
    monkeypatch.setattr(reports, "import_choice", lambda *_, members: ModuleType(name="part"))
    with pytest.raises(AttributeError, match="REPORT"):
        nine.texts("notes")


def test_numbers_of_a_probe_are_by_row_and_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A probe without places, or whose file was deleted, has none."""
    report = build(runs_of("english", "qk_rope", "vo_rope", seeds=(0, 1, 2)), ["pe"])
    numbers = report.numbers("shift")
    assert numbers.keys() == {"qk_rope", "vo_rope"}
    for label, frame in numbers.items():
        for run in report.rows[label].runs:
            answer = run.probes["shift"]
            of_seed = frame["shift"].loc[run.config.seed]
            assert of_seed.to_dict() == dict(zip(answer["start"], answer["loss"], strict=True))

    with monkeypatch.context() as patched:
        patched.setattr(shift, "REPORT", Part())
        assert report.numbers("shift") == {}
    monkeypatch.setattr(reports, "choice_names", lambda folder: [])
    assert report.numbers("shift") == {}
