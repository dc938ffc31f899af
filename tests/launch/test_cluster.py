"""Tests of submitting campaigns and sweeps, to submitit's local executor or a fake SLURM.

tests/cluster/test_slurm.py does the same on a real SLURM.
"""

import subprocess
import sys
from pathlib import Path

import pytest
from support.configs import TINY
from support.refused import refused
from support.slurm import until

from rope_exp import prepare as prepare_module
from rope_exp.admit import admit
from rope_exp.commands.campaign import main as campaign
from rope_exp.commands.sweep import main as sweep
from rope_exp.compose import run_config
from rope_exp.folder import read_result, write_config
from rope_exp.settle import resolve
from rope_exp.slurm.cluster import Cluster
from rope_exp.slurm.queue import Queue


def commands(folder: Path, monkeypatch: pytest.MonkeyPatch, **outputs: str) -> None:
    """Put SLURM commands that print these outputs first on the PATH."""
    for name, output in outputs.items():
        path = folder / name
        path.write_text(f"#!/bin/sh\ncat <<'END'\n{output}\nEND\n")
        path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


def test_a_sweep_is_rehearsed_on_this_machine(tmp_path: Path, corpus: Path, cache: Path) -> None:
    """One job trains both runs; --list shows them as left, then as finished.

    Without run.group, folders are named by a hash, which stays as the node resolves `auto`.
    """
    data = [f"data.path={corpus}", "data.holdout_fraction=0.2", f"data.cache_dir={cache}"]
    words = [*TINY, *data, "pe=nope,vo_rope", "launch=slurm_local"]

    def command(*more: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "rope_exp", "sweep", *words, *more],
            cwd=tmp_path, capture_output=True, text=True, check=True,
        )  # fmt: skip
        return done.stdout

    assert command("--list").count("left") == 2
    assert "submitted 2 runs as one job" in command("launch.cells_per_job=2")
    runs = tmp_path / "results/runs"
    until(lambda: len([*filter(read_result, runs.glob("*/*/seed0"))]) == 2, 120)
    assert command("--list").count("finished") == 2
    assert "nothing to submit" in command()


def test_the_queue_tells_what_became_of_a_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands(tmp_path, monkeypatch, squeue="7_0 PENDING\n7_1 COMPLETING")
    queue = Queue(tmp_path / "jobs")
    with queue.alone():
        queue.add("slurm", [["a"], ["b", "c"], ["d"]], ["7_0", "7_1", "7_2"])
        with refused("launch", "another command submits"), queue.alone():
            pass
    assert queue.describe("abcd") == {
        "a": "queued, job 7_0",
        "b": "running, job 7_1",
        "c": "running, job 7_1",
        "d": f"failed or stopped, see {tmp_path}/jobs/7_2_0_log.out",
    }

    # If SLURM does not answer, the queue still reports the submission.
    (tmp_path / "squeue").write_text("#!/bin/sh\necho no controller >&2\nexit 1\n")
    said = queue.describe("a")["a"]
    assert said.startswith("submitted (squeue: no controller), see ")
    with pytest.raises(ChildProcessError, match="no controller"):
        queue.active("a")


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in a folder with a fake SLURM; return that of the run `nope` of group `g`, at seed 0."""
    monkeypatch.chdir(tmp_path)
    commands(tmp_path, monkeypatch, sinfo=ONE, srun="", sbatch="Submitted batch job 12")
    folder = tmp_path / "results/runs/g/nope/seed0"
    folder.mkdir(parents=True)
    return folder


ONE = "main* 8 CPUs, 1 MB, a100, gpu:4"
TWO = f"{ONE}\nmain* 8 CPUs, 1 MB, h100, gpu:4"


@pytest.mark.parametrize(
    ("nodes", "launcher", "is_refused"),
    [
        (f"{ONE}\n{ONE}", {}, False),
        (f"{ONE}\nother 9 CPUs, 1 MB, h100, gpu:4", {}, False),
        (TWO, {}, True),
        (TWO, {"constraint": "a100"}, False),
        (TWO, {"constraint": "a100|h100"}, True),
        (TWO.replace("*", ""), {"partition": "main"}, True),
    ],
)
def test_a_block_stays_on_one_kind_of_node(
    nodes: str,
    launcher: dict[str, str],
    is_refused: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Several kinds of node that could run a block are refused before anything is submitted."""
    commands(tmp_path, monkeypatch, sinfo=nodes, srun="", sbatch="Submitted batch job 12")
    cluster = Cluster("slurm", launcher, 1)
    queue = Queue(tmp_path / "jobs")
    cells = {"a": 1, "b": 2}
    if is_refused:
        with refused("hydra.launcher.constraint=null", "one kind", "h100"):
            cluster.submit(queue, cells, lambda part: 0)
        assert not queue.jobs
    else:
        said = cluster.submit(queue, cells, lambda part: 0)
        assert "submitted 2 runs as 2 jobs (12); logs in" in said
        assert queue.jobs == {"a": ["slurm", "12_0"], "b": ["slurm", "12_1"]}


def test_what_a_cluster_does_not_take_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands(tmp_path, monkeypatch, sinfo="one kind")
    with refused("hydra.launcher", "no_such"):
        Cluster("local", {"no_such": 1}, 1).submit(
            Queue(tmp_path / "jobs"), {"a": 1}, lambda part: 0
        )
    with refused("launch.cells_per_job=2", "on a cluster"):
        admit([run_config(["launch.cells_per_job=2"])])


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("hydra.launcher.partition=a,b", "several values make a sweep"),
        ("hydra.launcher.tasks_per_node=8", "must be 1: a job starts its own processes"),
        ("hydra.launcher.name=x", "is for Hydra's own way"),
        ("hydra.launcher.nodes=2", "must be 1"),
        ("optim.lr=0.1,0.2", "two runs of the sweep"),
        ("optim.lr=0.1", "belongs to another config (optim.lr"),
    ],
)
def test_a_sweep_refuses_what_it_would_lose(
    word: str, said: str, slurm: Path, tmp_path: Path
) -> None:
    """Nothing is submitted then. Keys that a node will resolve are not compared."""
    words = ["pe=nope", "run.group=g", "launch=slurm"]
    write_config(slurm, resolve(run_config([*words[:2]])))
    with refused(said):
        sweep([*words, word])
    assert not (tmp_path / "results/slurm").exists()
    assert sweep(words) == 0


def test_a_sweep_compares_all_but_what_a_node_resolves(
    slurm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run with a window is not one without; commits of the hub are looked up at submission."""
    monkeypatch.setattr(prepare_module, "newest_commit", lambda *_: "a" * 40)
    hub = ["data=hub", "data.path=me/texts", "data.text_column=text"]
    words = ["pe=nope", "run.group=g", *hub]
    write_config(slurm, resolve(run_config([*words, "model.window=64"])))
    with refused("belongs to another config (", "model.window: 64 -> null"):
        sweep([*words, "launch=slurm"])
    write_config(slurm, resolve(run_config([*words, f"data.revision={'a' * 40}"])))
    assert sweep([*words, "launch=slurm"]) == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["seed=3"], "seed: must be launch, "),
        (["launch=local"], "launch: must be slurm or slurm_local"),
        (["launch=slurm", "--hours", "1"], "--hours=1.0: is for a campaign that runs here"),
    ],
)
def test_a_campaign_says_everything_else_itself(home: Path, words: list[str], said: str) -> None:
    """Overrides that are not about the launcher are refused, as are options of a local campaign."""
    with refused(said):
        campaign(["mine", "--config-dir", str(home), *words])


def test_a_job_that_was_stopped_otherwise_is_not_requeued(monkeypatch: pytest.MonkeyPatch) -> None:
    """SLURM then shows a failed job, and the next submission starts its cells again."""
    monkeypatch.setenv("SUBMITIT_EXECUTOR", "local")
    monkeypatch.setenv("SUBMITIT_LOCAL_JOB_ID", "1")
    script = (
        "from rope_exp.slurm.cluster import Work\n"
        "import functools, sys\n"
        "Work(functools.partial(int, 75), 3, None)()\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 1
    assert "ChildProcessError: ended with exit code 75" in done.stderr
