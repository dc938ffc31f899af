"""Tests of file operations that fail, and of disks that fill up."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from support.configs import REPOSITORY
from support.runs import TRAIN, Completed, Trial, assert_same_run

NO_SPACE = r"error: no space left in .*: .* needs [\d,]+ bytes and [\d,]+ are free"
HOWS = {"killed before", "killed after", "disk full", "input/output error"}
# The number of a file operation in the run folder; 1: killed before it, 2: after it.
KILLS = [(at, how) for at in range(1, 120, 6) for how in (1, 2)]


def on_small_disk(mount: Path, kilobytes: int, script: str) -> Completed:
    """Run a shell script in `mount`, on which a tmpfs of this size is mounted."""
    mount.mkdir(exist_ok=True)
    space = ["unshare", "--user", "--map-root-user", "--mount"]
    allowed = shutil.which("unshare") and subprocess.run([*space, "true"], capture_output=True)
    if not allowed or allowed.returncode:
        pytest.skip("mounting takes Linux's user namespaces, which are not allowed here")

    mounted = f"mount -t tmpfs -o size={kilobytes}k tmpfs {mount}"
    return subprocess.run(
        [*space, "sh", "-c", f"set -e; {mounted}; cd {mount}; set +e; {script}"],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
    )


def command_line(trial: Trial, run: Path) -> str:
    return " ".join([sys.executable, TRAIN, *trial.command, f"run.dir={run}"])


def test_a_broken_save_leaves_the_old_or_the_new(broken_files: Path) -> None:
    """Every way breaks the same operations, more than 20, and every expected outcome occurs.

    Every listed checkpoint verifies, and the run resumes from the newest one: no folder with a
    checkpoint's name is partly saved or partly deleted. The error of a full disk says so, and no
    error leaves a temporary folder.
    """
    done = subprocess.run(
        [sys.executable, str(Path(__file__).parent / "save.py"), str(broken_files)],
        env=os.environ
        | {"LD_PRELOAD": str(broken_files), "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    saves = [json.loads(line) for line in done.stdout.splitlines()]
    num_by_how = Counter(save["how"] for save in saves)
    assert set(num_by_how) == HOWS
    assert min(num_by_how.values()) == max(num_by_how.values()) > 20
    outcomes = {(save["how"], save["loaded"]) for save in saves}
    assert outcomes >= {("killed before", 2), ("killed before", 3)}
    assert outcomes >= {("disk full", 2), ("input/output error", 2)}

    for save in saves:
        assert save["verified"] == save["listed"], save
        assert save["listed"] in ([1, 2], [1, 2, 3], [2, 3]), save
        assert save["loaded"] == max(save["listed"]), save
        assert save["after"] == [f"step_{save['loaded']:08d}", "step_00000004"], save
        killed = save["how"].startswith("killed")
        assert (save["status"] == -signal.SIGKILL) == killed, save
        if not killed and save["status"] != 0:
            assert not any(name.startswith(".saving-") for name in save["left"]), save
        if save["how"] == "disk full" and save["status"] != 0:
            assert save["said"].startswith("no space left in "), save


@pytest.mark.torture
@pytest.mark.parametrize(("at", "how"), KILLS)
def test_killed_at_a_file_operation_it_goes_on(
    trial: Trial, broken_files: Path, at: int, how: int
) -> None:
    """The resumed run equals the undisturbed one, and leaves no temporary files."""
    done = trial.train(
        LD_PRELOAD=str(broken_files),
        FAULT_FOLDER=str(trial.folder),
        FAULT_AT=str(at),
        FAULT_HOW=str(how),
    )
    assert done.returncode in (1, -signal.SIGKILL), done.stderr
    assert not (trial.folder / "result.json").exists()
    trial.assert_goes_on()
    left = {path.name for path in trial.folder.rglob(".*")}
    assert left <= {".lock"}, left


def test_a_disk_that_fills_up_costs_no_checkpoint(trial: Trial, tmp_path: Path) -> None:
    """It leaves no partial row either, and the run resumes once there is room again.

    A checkpoint takes about 450 kB. After the first one, another program fills the disk.
    """
    disk = tmp_path / "disk"
    kept = tmp_path / "kept"
    run = command_line(trial, disk / "run")
    script = f"""
        {run} 2> {tmp_path}/err & run=$!
        while kill -0 $run && ! [ -d run/checkpoints/step_00000010 ]; do sleep 0.01; done
        cat /dev/zero > eater 2> /dev/null
        wait $run; echo "exit $?"; cat {tmp_path}/err; ls -A run run/checkpoints; cp -r run {kept}
        rm eater; {run} > /dev/null 2>&1; echo "then $?"; cp -r run {trial.folder}
    """
    done = on_small_disk(disk, 5000, script)
    assert "exit 1" in done.stdout, done.stdout + done.stderr
    assert re.search(NO_SPACE, done.stdout), done.stdout
    for left in ("Traceback", ".saving", ".new"):
        assert left not in done.stdout

    oldest = min((kept / "checkpoints").iterdir())
    assert {path.name for path in oldest.iterdir()} >= {"model.safetensors", "manifest.json"}
    content = (kept / "metrics.jsonl").read_bytes()
    assert content.endswith(b"\n")
    steps = [json.loads(line)["step"] for line in content.splitlines()]
    assert steps == list(range(1, len(steps) + 1))

    assert "then 0" in done.stdout
    assert_same_run(trial.undisturbed, trial.folder)
