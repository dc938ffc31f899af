"""End-to-end test of a sweep, one of whose runs breaks, and of its report."""

import os
import subprocess
import sys
from pathlib import Path

from support.configs import REPOSITORY
from support.runs import sabotage, starts, train

from rope_exp.files import read_json

BOTH = ("nope", "vo_rope")


def test_rows_of_one_command_become_a_table(tmp_path: Path, tiny_overrides: list[str]) -> None:
    """A broken run is named, and the same command starts it alone; rows share all but rotation."""
    command = ["+experiment=nine", *(word for word in tiny_overrides if "run.dir" not in word)]
    command += ["run.group=nine", f"pe={','.join(BOTH)}"]
    done = train(*command, cwd=tmp_path, **sabotage(step=3, vo_rope="memory"))
    assert done.returncode == 1
    runs = tmp_path / "results/runs/nine"
    log = runs / "vo_rope/seed0/log.txt"
    assert f"vo_rope-s0: failed (exit code 1), see {log.relative_to(tmp_path)}" in done.stderr
    assert "allocate memory" in log.read_text()
    assert starts(runs) == {"nope": 1}

    again = train(*command, cwd=tmp_path)
    assert again.returncode == 0
    # The report below writes where this sentence says.
    assert "its table: rope-exp report --group nine\n" in again.stderr
    assert starts(runs) == {"nope": 1, "vo_rope": 2}
    results = [read_json(runs / f"{pe}/seed0/result.json") for pe in BOTH]
    for key in ("init_sha256", "data_sha256", "order_sha256", "group_sha256", "params"):
        assert len({result[key] for result in results}) == 1, key
    assert len({result["val/loss"] for result in results}) == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["results"]

    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    report = [sys.executable, "-W", "error", str(REPOSITORY / "scripts" / "report.py")]
    made = subprocess.run(report, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert made.returncode == 0
    assert made.stderr == ""
    assert len((tmp_path / "results/nine/table.csv").read_text().splitlines()) == 3
