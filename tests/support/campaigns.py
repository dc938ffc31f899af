"""Small campaigns for tests, written to a folder for --config-dir."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from rope_exp.campaign.campaign import Progress
from rope_exp.campaign.cells import Campaign, load_campaign
from rope_exp.files import read_json
from support.configs import REPOSITORY, TINY

RECORDS = Path("results/records")
RUNS = Path("results/runs")

# A campaign must set these keys, because their defaults depend on the machine.
DECIDED = (
    "train.compile=false",
    "train.deterministic=true",
    "launch.device=cpu",
    "launch.num_threads=1",
    "launch.max_parallel=1",
)
FIXED = (*TINY, *DECIDED, "data.path=corpus", "data.holdout_fraction=0.2")
# These runs are long enough for a test to interrupt them.
LONG = ("train.num_steps=60", "train.save_every=10", "train.eval_every=30")
# These runs are short, and save five checkpoints.
SHORT = (*FIXED, "train.num_steps=20", "train.save_every=4")
ROWS = {"qk": ["pe=qk_rope"], "vo": ["pe=vo_rope"]}

# A campaign and its ranks import from here, so they see no commit and no uncommitted changes.
PYTHONPATH = os.pathsep.join([str(REPOSITORY / "tests/support/unversioned"), str(REPOSITORY)])

COMMAND = "import sys; from rope_exp.__main__ import main; sys.exit(main('campaign'))"


def write_campaign(folder: Path, name: str = "mine", **values: Any) -> Path:
    """Write <folder>/campaign/<name>.yaml, with two rows and one seed unless `values` differ."""
    content = {"fixed": list(FIXED), "rows": ROWS, "cells": ["seed=0"], **values}
    path = folder / "campaign" / f"{name}.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
    return path


def load(folder: Path, name: str = "mine", **values: Any) -> Campaign:
    write_campaign(folder, name, **values)
    return load_campaign(name, folder, RUNS)


def names(campaign: Campaign) -> list[str]:
    return [cell.name for cell in campaign.cells]


def start_campaign(
    folder: Path, *words: str, prelude: str = "", **environment: str
) -> "subprocess.Popen[str]":
    """Start `rope-exp campaign mine` in a folder, after some code."""
    # The campaign sets launch.num_threads=1, which must override this OMP_NUM_THREADS.
    shared = {"PYTHONPATH": PYTHONPATH, "OMP_NUM_THREADS": "2"}
    code = f"{prelude}\n{COMMAND}"
    return subprocess.Popen(
        [sys.executable, "-c", code, "mine", "--config-dir", str(folder), *words],
        cwd=folder,
        env=os.environ | shared | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def make_home(folder: Path, corpus: Path) -> Path:
    (folder / "corpus").symlink_to(corpus)
    write_campaign(
        folder,
        fixed=[*FIXED, *LONG, "train.probes=[windows,shift]"],
        cells=["seed=3 optim.betas=[0.9,0.95]"],
    )
    return folder


def run_campaign_command(
    folder: Path, *words: str, **environment: str
) -> "subprocess.CompletedProcess[str]":
    process = start_campaign(folder, *words, **environment)
    stdout, stderr = process.communicate(timeout=240)
    return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)


def records_of(folder: Path) -> list[Path]:
    return sorted((folder / RECORDS / "mine").glob("*.json"))


def without_clock(path: Path) -> dict[str, Any]:
    record = read_json(path)
    del record["sha256"]
    for key in ("tokens_per_s", "wall_s", "mfu"):
        del record["result"][key]
    for key in ("started", "marks", "earlier_git"):
        record["env"].pop(key, None)
    return record


def progress(home: Path) -> Progress:
    return Progress(load_campaign("mine", home, RUNS), RECORDS)


def assert_same_records(home: Path, recorded: Path) -> None:
    """Assert that the records equal those of the undisturbed campaign, except for times."""
    ours = {path.name: without_clock(path) for path in records_of(home)}
    assert ours == {path.name: without_clock(path) for path in records_of(recorded)}
