"""Tests of submission to submitit's local executor or a fake SLURM; a real one: tests/cluster."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.refused import refused
from support.runs import until

from rope_exp.commands.sweep import main as sweep
from rope_exp.compose import resolve, run_config
from rope_exp.folder import read_result, write_config
from rope_exp.slurm import Queue
from rope_exp.sweep import admit

Capsys = pytest.CaptureFixture[str]


def commands(folder: Path, monkeypatch: pytest.MonkeyPatch, **outputs: str) -> None:
    """Put SLURM commands that print these outputs, and keep their words, first on the PATH."""
    for name, output in outputs.items():
        path = folder / name
        path.write_text(f"#!/bin/sh\necho $* >> {folder}/{name}.words\necho '{output}'\n")
        path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


def test_a_sweep_is_rehearsed_on_this_machine(
    tiny_overrides: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Capsys
) -> None:
    """One job trains both runs; the hash in their folders stays as the node resolves `auto`."""
    words = [*tiny_overrides[:-1], "pe=nope,vo_rope", "launch=slurm_local"]
    monkeypatch.chdir(tmp_path)
    assert sweep([*words, "--list"]) == 0
    assert capsys.readouterr().out.count("left") == 2
    # In a process of its own, because submitit's job outlives the command.
    command = [sys.executable, "-m", "rope_exp", "sweep", *words, "launch.cells_per_job=2"]
    assert "submitted 2 runs, jobs " in subprocess.check_output(command, text=True)
    runs = tmp_path / "results/runs"
    until(lambda: len([*filter(read_result, runs.glob("*/*/seed0"))]) == 2, 120)
    assert sweep([*words, "--list"]) == 0
    assert sweep(words) == 0
    listed = capsys.readouterr().out
    assert listed.count("finished") == 2
    assert listed.count("nothing to submit") == 1


def test_the_queue_tells_what_became_of_a_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If SLURM does not answer, the queue still reports the submission."""
    commands(tmp_path, monkeypatch, squeue="7_0 PENDING\n7_1 COMPLETING")
    queue = Queue(tmp_path)
    queue.add("slurm", [["a"], ["b", "c"], ["d"]], ["7_0", "7_1", "7_2"])
    assert queue.describe("abcd") == {
        "a": "queued, job 7_0",
        "b": "running, job 7_1",
        "c": "running, job 7_1",
        "d": f"failed or stopped, see {tmp_path}/7_2_0_log.out",
    }
    (tmp_path / "squeue").write_text("#!/bin/sh\necho no controller >&2\nexit 1\n")
    assert queue.describe("a")["a"].startswith("submitted (squeue: no controller), see ")


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in a folder with a fake SLURM; return that of the run `nope` of group `g`, at seed 0."""
    monkeypatch.chdir(tmp_path)
    commands(tmp_path, monkeypatch, srun="", sbatch="Submitted batch job 12")
    folder = tmp_path / "results/runs/g/nope/seed0"
    folder.mkdir(parents=True)
    return folder


WORDS = ["pe=nope", "run.group=g", "launch=slurm"]


@pytest.mark.parametrize(
    ("word", "sentence"),
    [
        ("hydra.launcher.partition=a,b", "several values make a sweep"),
        ("hydra.launcher.tasks_per_node=8", "must be 1: a job starts its own processes"),
        ("+hydra.launcher.no_such=1", "hydra.launcher: "),
        ("launch=local", "launch: must be slurm or slurm_local"),
        ("optim.lr=0.1,0.2", "two runs of the sweep"),
        ("optim.lr=0.1", "belongs to another config (optim.lr"),
    ],
)
def test_a_sweep_refuses_what_it_would_lose(
    word: str, sentence: str, slurm: Path, tmp_path: Path
) -> None:
    """Nothing is submitted then. Keys that a node will resolve are not compared."""
    write_config(slurm, resolve(run_config(WORDS[:2])))
    with refused(sentence):
        sweep([*WORDS, word])
    assert not (tmp_path / "results/slurm/sweeps/jobs.json").exists()


@pytest.mark.parametrize("launch", ["slurm", "slurm_local"])
@pytest.mark.usefixtures("slurm")
def test_a_failed_submission_names_the_choice(launch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sentence has the user's word, not submitit's name of the cluster."""

    def fail(**_: object) -> None:
        raise OSError("no queue")

    monkeypatch.setattr("submitit.AutoExecutor", fail)
    with pytest.raises(ChildProcessError, match=f"^launch={launch}: no queue$"):
        sweep([*WORDS[:2], f"launch={launch}"])


def test_a_sweep_compares_all_but_what_a_node_resolves(
    slurm: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run with a window is not one without; commits of the hub are looked up at submission."""
    monkeypatch.setattr("rope_exp.hub.newest_commit", lambda *_: "a" * 40)
    hub = ["data=hub", "data.path=me/texts", "data.text_column=text"]
    write_config(slurm, resolve(run_config([*WORDS[:2], *hub, "model.window=64"])))
    with refused("belongs to another config (", "model.window: 64 -> null"):
        sweep([*WORDS, *hub])
    pinned = [*WORDS[:2], *hub, f"data.revision={'a' * 40}"]
    write_config(slurm, resolve(run_config(pinned)))
    assert sweep([*WORDS, *hub, "hydra.launcher.partition=gpu"]) == 0
    assert "submitted 1 runs, jobs 12; logs in results/slurm/sweeps" in capsys.readouterr().out
    script = next((tmp_path / "results/slurm/sweeps").glob("*.sh"))
    for line in ("--partition=gpu", "--requeue", "--gpus-per-node=1", "--signal=USR2@120"):
        assert f"#SBATCH {line}\n" in script.read_text()


def test_a_run_takes_no_key_of_a_clusters_jobs() -> None:
    with refused("launch.cells_per_job=2", "on a cluster"):
        admit([run_config(["launch.cells_per_job=2"])])


# A job's run that is stopped, by SLURM's signal ahead of the time limit if SIGNAL is set.
STOPPED = """
import os, signal
from rope_exp.slurm import run_on_node

def train(runs):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if "SIGNAL" in os.environ:
        os.kill(os.getpid(), signal.SIGUSR2)
    return 75

run_on_node(train, [], 3, None)
"""


@pytest.mark.parametrize(
    ("shown", "environment", "is_requeued"),
    [
        ("", {}, False),
        ("", {"SIGNAL": ""}, True),
        ("", {"SIGNAL": "", "SLURM_RESTART_COUNT": "3"}, False),
        ("PreemptTime=2026", {"SLURM_RESTART_COUNT": "3"}, True),
        ("", {"SIGNAL": "", "SUBMITIT_EXECUTOR": "local", "SUBMITIT_LOCAL_JOB_ID": "1"}, False),
    ],
)
def test_a_job_is_requeued_at_its_limit_or_preempted(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    shown: str,
    environment: dict[str, str],
    is_requeued: bool,
) -> None:
    """Stopped otherwise it fails, and the next submission starts its runs again."""
    commands(tmp_path, monkeypatch, scontrol=shown)
    slurm = {"SUBMITIT_EXECUTOR": "slurm", "SLURM_ARRAY_JOB_ID": "12", "SLURM_ARRAY_TASK_ID": "3"}
    done = subprocess.run(
        [sys.executable, "-c", STOPPED],
        capture_output=True,
        text=True,
        env=os.environ | {"SLURM_JOB_ID": "15"} | slurm | environment,
    )
    assert "ChildProcessError: ended with exit code 75" in done.stderr
    words = tmp_path / "scontrol.words"
    assert ("requeue 12_3" in words.read_text() if words.exists() else False) == is_requeued
