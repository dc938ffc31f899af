"""Tests of file operations that fail, and of disks that fill up."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.configs import REPOSITORY
from support.runs import TRAIN, Completed, Trial, assert_same_run

NO_SPACE = r"error: no space left in .*: .* needs [\d,]+ bytes and [\d,]+ are free"
# The number of a file operation in the run folder; 1: killed before it, 2: after it.
# Likewise; 4: it fails with EIO, 5: it and all later ones do, since the quota is full.
ERRORS = [
    pytest.param(at, how, marks=pytest.mark.torture) for at in range(1, 120, 6) for how in (4, 5)
]
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


def test_a_broken_save_leaves_the_old_or_the_new(broken_files: Path) -> None:
    """The script asserts it for every file operation."""
    faults = {"LD_PRELOAD": str(broken_files), "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(
        [sys.executable, str(Path(__file__).parent / "save.py"), str(broken_files)],
        env=os.environ | faults | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout[-40:] + done.stderr


def train_with_fault(
    trial: Trial, broken_files: Path, at: int, how: int
) -> subprocess.CompletedProcess[str]:
    """Train, and let operation `at` on the run's files fail in the way `how` (files.c)."""
    return trial.train(
        LD_PRELOAD=str(broken_files),
        FAULT_FOLDER=str(trial.folder),
        FAULT_AT=str(at),
        FAULT_HOW=str(how),
    )


@pytest.mark.parametrize(("at", "how"), [(30, 5), *ERRORS])
def test_an_error_of_the_disk_is_one_sentence(
    trial: Trial, broken_files: Path, at: int, how: int
) -> None:
    """The disk fails once, or the quota is full from then on; with a whole disk it goes on."""
    done = train_with_fault(trial, broken_files, at, how)
    # The run may do without some operations, such as the deletion of an old checkpoint; without
    # its folder, it is refused.
    assert done.returncode in ((0, 1, 2) if how == 4 else (1,)), done.stderr
    assert "Traceback (" not in done.stderr
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == bool(done.returncode), done.stderr
    if how == 5:
        assert "exceeds your quota of disk space" in errors[0]
    trial.assert_goes_on()


@pytest.mark.parametrize("is_moved", [False, True])
def test_a_folder_that_goes_during_a_run_ends_it(
    trial: Trial, tmp_path: Path, is_moved: bool
) -> None:
    """Its next checkpoint would begin a folder without a config, and rows would be lost."""
    process = trial.start(rows=12)
    if is_moved:
        trial.folder.rename(tmp_path / "moved")
    else:
        # The run may write a file between the deletion of the others and of their folder.
        while trial.folder.exists():
            shutil.rmtree(trial.folder, ignore_errors=True)
    _, stderr = process.communicate(timeout=240)
    assert process.returncode == 1, stderr
    errors = [line for line in stderr.splitlines() if line.startswith("error: ")]
    assert [error.partition("metrics.jsonl ")[2] for error in errors] == [
        "was deleted or moved while the run wrote to it"
    ]
    assert "Traceback (" not in stderr
    assert not trial.folder.exists()
    trial.assert_goes_on()


@pytest.mark.torture
@pytest.mark.parametrize(("at", "how"), KILLS)
def test_killed_at_a_file_operation_it_goes_on(
    trial: Trial, broken_files: Path, at: int, how: int
) -> None:
    """The resumed run equals the undisturbed one, and leaves no temporary files."""
    done = train_with_fault(trial, broken_files, at, how)
    assert done.returncode in (1, -signal.SIGKILL), done.stderr
    assert not (trial.folder / "result.json").exists()
    trial.assert_goes_on()
    left = {path.name for path in trial.folder.rglob(".*")}
    assert left <= {".lock"}, left


def test_a_disk_that_fills_up_costs_no_checkpoint(trial: Trial, tmp_path: Path) -> None:
    """After the first, of 450 kB, another program fills the disk; the run resumes with room."""
    disk = tmp_path / "disk"
    kept = tmp_path / "kept"
    run = " ".join([sys.executable, TRAIN, *trial.command, f"run.dir={disk / 'run'}"])
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


@pytest.mark.parametrize("room", [-8, 12], ids=["weights", "tokenizer"])
def test_an_export_onto_a_full_disk_is_one_sentence(
    whole: tuple[Path, list[str]], tmp_path: Path, room: int
) -> None:
    """Weights and tokenizer are written by libraries, whose errors are not the system's."""
    run, _ = whole
    weights = run / "checkpoints/step_00000060/model.safetensors"
    kilobytes = weights.stat().st_size // 1024 + room
    script = f"{sys.executable} -m rope_exp export {run} out; echo exit $?; ls -A"
    done = on_small_disk(tmp_path / "disk", kilobytes, script)
    assert done.stdout == "exit 1\n", done.stdout + done.stderr
    assert done.stderr.startswith("error: no space left in "), done.stderr
    assert done.stderr.count("\n") == 1
