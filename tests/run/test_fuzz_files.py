"""Fuzz tests: any content of a run's files is read, or refused in one sentence by name."""

import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rope_exp import load_run
from rope_exp.content import build
from rope_exp.errors import CheckpointError, ConfigError, DataError, RecordError
from rope_exp.runs import read_runs

FEW, MANY = 60, 3000


SIZES = [pytest.param(FEW, id="few"), pytest.param(MANY, id="many", marks=pytest.mark.torture)]


@pytest.mark.parametrize("num_examples", SIZES)
def test_a_harmed_run_folder_is_read_or_refused(
    whole: tuple[Path, list[str]], tmp_path: Path, num_examples: int
) -> None:
    runs = tmp_path / "g"
    folder = runs / "vo_rope" / "seed0"
    shutil.copytree(whole[0], folder)
    assert [run.status for run in read_runs([runs])[0]] == ["finished"]
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != ".lock")

    def report() -> None:
        build(read_runs([runs])[0], ("pe",))

    def check(harm: tuple[Path, int, int, bytes]) -> None:
        path, place, length, inserted = harm
        content = path.read_bytes()
        place %= len(content)
        path.write_bytes(content[:place] + inserted + content[place + length :])
        try:
            for read in (lambda: load_run(folder), report):
                try:
                    read()
                except (RecordError, CheckpointError, DataError, ConfigError) as error:
                    assert "\n" not in str(error)
        finally:
            path.write_bytes(content)

    strategy = st.tuples(
        st.sampled_from(files), st.integers(0, 10**6), st.integers(0, 30), st.binary(max_size=8)
    )
    effort = settings(
        max_examples=num_examples, derandomize=True, suppress_health_check=list(HealthCheck)
    )
    effort(given(strategy)(check))()
