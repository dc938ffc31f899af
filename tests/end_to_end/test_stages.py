"""End-to-end tests of masked-token training in stages of several lengths."""

from pathlib import Path

import pytest
from support.configs import TINY
from support.runs import Trial, kill_the_tree, train

from rope_exp.run.metrics import read_metrics
from rope_exp.system.files import read_json

STAGES = (
    "train.objective=mlm",
    "train.stages=[[16,12],[32,14],[8,4]]",
    "train.num_steps=30",
    "train.save_every=5",
    "train.eval_every=15",
)


@pytest.fixture(scope="module")
def undisturbed(
    tmp_path_factory: pytest.TempPathFactory, corpus: Path, cache: Path
) -> tuple[tuple[str, ...], Path]:
    """Return the command and the folder of an undisturbed run."""
    data = (f"data.path={corpus}", "data.holdout_fraction=0.2", f"data.cache_dir={cache}")
    command = (*TINY, *data, *STAGES, "pe=qkv_rope")
    folder = tmp_path_factory.mktemp("staged")
    done = train(*command, f"run.dir={folder / 'run'}", cwd=folder)
    assert done.returncode == 0, done.stderr
    return command, folder / "run"


@pytest.fixture
def trial(undisturbed: tuple[tuple[str, ...], Path], tmp_path: Path) -> Trial:
    command, folder = undisturbed
    return Trial(command=command, folder=tmp_path / "run", undisturbed=folder)


def test_killed_inside_a_stage_it_is_the_same_run(trial: Trial) -> None:
    """The run is killed in the second of three stages, after a checkpoint in that stage."""
    process = trial.start(rows=18)
    kill_the_tree(process.pid)
    process.communicate()
    trial.assert_goes_on()

    rows = read_metrics(trial.folder)
    assert [row["tokens"] for row in rows] == [64 * step for step in range(1, 31)]
    assert rows[-1]["train/loss"] < rows[0]["train/loss"] - 0.2
    assert read_json(trial.folder / "env.json")["certificate"]["decoder"]["expected"] == "changed"
