"""Deleting a choice is `rm`: without any choice, the harness composes, trains and reports."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.configs import REPOSITORY, TINY

PACKAGE = REPOSITORY / "rope_exp"
NO_CHOICES = ("__pycache__", "campaign", "export")
CHOICES = sorted({path.name for path in PACKAGE.iterdir() if path.is_dir()} - {*NO_CHOICES})
# Commands are choices, too, so the harness is called from Python.
CORE = """
import sys
from pathlib import Path

from rope_exp.compose import compose_runs, run_config
from rope_exp.errors import ConfigError
from rope_exp.folder import read_runs
from rope_exp.report import build, files_of, write_all
from rope_exp.sweep import dispatch

assert len(compose_runs(["+experiment=nine", "pe=k_rope,nope"]).configs) == 2
try:
    run_config(["train.num_steps=0"])
except ConfigError as error:
    assert str(error).startswith("train.num_steps=0: "), error
else:
    raise AssertionError("a config that is wrong was not refused")

config = run_config(["pe=qk_rope", "run.group=g", *sys.argv[1:]])
assert dispatch([config], [config.name])[0] == 0
runs, _ = read_runs([Path("results/runs/g")])
write_all(Path("results"), files_of(build(runs, ["pe"])))
assert Path("results/table.csv").read_text().splitlines()[1].startswith("g,qk_rope,")
assert "| QK-RoPE |" in Path("results/table.md").read_text()
"""


EACH = [pytest.param([folder], marks=pytest.mark.torture, id=folder) for folder in CHOICES]


@pytest.mark.parametrize("without", [pytest.param(CHOICES, id="all"), *EACH])
def test_the_harness_works_without(without: list[str], tmp_path: Path) -> None:
    for folder in ("rope_exp", "configs"):
        shutil.copytree(REPOSITORY / folder, tmp_path / folder)
    for name in without:
        for path in (tmp_path / "rope_exp" / name).glob("[!_]*.py"):
            path.unlink()
    data = ["data=stdlib", "data.max_tokens=300000", "data.holdout_fraction=0.3"]
    data += ["data.cache_dir=cache"]
    done = subprocess.run(
        [sys.executable, "-c", CORE, *TINY, *data, "train.num_steps=2"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(tmp_path), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
