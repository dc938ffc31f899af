"""Small campaigns of a test's own, in a folder that --config-dir names."""

import subprocess
from pathlib import Path
from typing import Any

import yaml

from rope_exp.config.campaign import Campaign, load_campaign
from rope_exp.system.files import read_json
from support.configs import REPOSITORY, TINY
from support.runs import Process, start

# What a campaign may not leave to the machine.
DECIDED = (
    "train.compile=false",
    "train.deterministic=true",
    "launch.device=cpu",
    "launch.num_threads=1",
    "launch.max_parallel=1",
)
FIXED = (*TINY, *DECIDED, "data.path=corpus")
ROWS = {"qk": ["pe=qk_rope"], "vo": ["pe=vo_rope"]}
OF_CLOCKS = ("tokens_per_s", "wall_s", "mfu")

# The command as a person gives it, in a tree that counts as clean whatever is edited meanwhile.
COMMAND = """
from rope_exp.launch import campaign
campaign.git_state = lambda: None
from rope_exp.cli import main
sys.exit(main("campaign"))
"""


def write_campaign(folder: Path, name: str = "mine", **values: Any) -> Path:
    """Write <folder>/campaign/<name>.yaml: of two rows and one seed, but for `values`."""
    content = {"fixed": list(FIXED), "rows": ROWS, "cells": [{"seed": [0]}], **values}
    path = folder / "campaign" / f"{name}.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
    return path


def load(folder: Path, name: str = "mine", **values: Any) -> Campaign:
    """Write a campaign, and load it."""
    write_campaign(folder, name, **values)
    return load_campaign(name, folder, Path("results/runs"))


def names(campaign: Campaign) -> list[str]:
    """Return the names of a campaign's cells, in their order."""
    return [cell.name for cell in campaign.cells]


def start_campaign(folder: Path, *words: str) -> Process:
    """Start `rope-exp campaign mine` in a folder, with that folder's own campaigns."""
    words = ("mine", "--config-dir", str(folder), *words)
    return start(*words, cwd=folder, launcher=("-c", COMMAND), PYTHONPATH=str(REPOSITORY))


def run_campaign_command(folder: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    """Run it to its end."""
    process = start_campaign(folder, *words)
    stdout, stderr = process.communicate(timeout=120)
    return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)


def record_without_clock(path: Path) -> dict[str, Any]:
    """Return what a record holds but for times, and the digest that covers them."""
    record = read_json(path)
    del record["sha256"]
    for key in OF_CLOCKS:
        del record["result"][key]
    for key in ("started", "marks"):
        del record["env"][key]
    return record
