"""Fuzz tests: any content of a run's files is read, or refused in one sentence by name."""

import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.configs import TINY
from support.runs import train

from rope_exp import load_run
from rope_exp.evidence.runs import read_runs
from rope_exp.report.content import build
from rope_exp.system.errors import CheckpointError, ConfigError, DataError, RecordError

FEW, MANY = 60, 3000


@pytest.fixture(scope="module")
def finished(
    tmp_path_factory: pytest.TempPathFactory, corpus: Path, cache: Path
) -> tuple[Path, list[str]]:
    """Return the folder of a small finished run in a group of its own, and its command line."""
    folder = tmp_path_factory.mktemp("finished")
    command = [
        *TINY,
        f"data.path={corpus}",
        "data.holdout_fraction=0.2",
        f"data.cache_dir={cache}",
        "run.group=g",
    ]
    done = train(*command, "pe=qk_rope", "launch.device=cpu", cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder / "results/runs/g/qk_rope/seed0", command


SIZES = [pytest.param(FEW, id="few"), pytest.param(MANY, id="many", marks=pytest.mark.torture)]


@pytest.mark.parametrize("num_examples", SIZES)
def test_a_harmed_run_folder_is_read_or_refused(
    finished: tuple[Path, list[str]], tmp_path: Path, num_examples: int
) -> None:
    runs = tmp_path / "g"
    folder = runs / "qk_rope" / "seed0"
    shutil.copytree(finished[0], folder)
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
    few = settings(
        max_examples=num_examples, derandomize=True, suppress_health_check=list(HealthCheck)
    )
    few(given(strategy)(check))()
