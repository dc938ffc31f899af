"""End-to-end tests of a sweep and its report."""

import os
import subprocess
import sys
from pathlib import Path

from support.configs import REPOSITORY
from support.runs import train

from rope_exp.files import read_json

# Of the nine: each is trained in a process of its own.
THREE = ("nope", "qk_rope", "vo_rope")


def test_rows_of_one_command_become_a_table(tmp_path: Path, tiny_overrides: list[str]) -> None:
    """They share everything except the rotation, and the command can be repeated."""
    command = [
        *(word for word in tiny_overrides if "run.dir" not in word),
        "run.group=nine",
        f"pe={','.join(THREE)}",
        "train.num_steps=4",
    ]
    done = train("+experiment=nine", *command, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    results = [read_json(tmp_path / f"results/runs/nine/{pe}/seed0/result.json") for pe in THREE]
    for key in ("init_sha256", "data_sha256", "order_sha256", "group_sha256", "params"):
        assert len({result[key] for result in results}) == 1, key
    assert len({result["val/loss"] for result in results}) == 3
    assert sorted(path.name for path in tmp_path.iterdir()) == ["results"]
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    report = [sys.executable, str(REPOSITORY / "scripts" / "report.py")]
    made = subprocess.run(report, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    assert len((tmp_path / "results" / "table.csv").read_text().splitlines()) == 4

    assert train("+experiment=nine", *command, cwd=tmp_path).returncode == 0
