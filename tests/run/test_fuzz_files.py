"""Fuzz test: any content of a run's files is read, or refused in one sentence by name."""

import shutil
from pathlib import Path

from hypothesis import strategies as st
from support.harm import Harm, efforts, harmed, try_harms
from support.refused import REFUSALS

from rope_exp import load_run
from rope_exp.report import build
from rope_exp.runs import read_runs


@efforts(60, 3000)
def test_a_harmed_run_folder_is_read_or_refused(
    whole: tuple[Path, list[str]], tmp_path: Path, effort: int
) -> None:
    runs = tmp_path / "g"
    folder = runs / "vo_rope" / "seed0"
    shutil.copytree(whole[0], folder)
    assert [run.status for run in read_runs([runs])[0]] == ["finished"]
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != ".lock")

    def check(harm: Harm, path: Path) -> None:
        content = path.read_bytes()
        path.write_bytes(harmed(content, harm))
        try:
            for read in (lambda: load_run(folder), lambda: build(read_runs([runs])[0], ("pe",))):
                try:
                    read()
                except REFUSALS as error:
                    assert "\n" not in str(error)
        finally:
            path.write_bytes(content)

    try_harms(check, effort, st.sampled_from(files))
