"""Tests of campaigns on a real SLURM; records equal those of the same campaign without it."""

import os
import re
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from support.campaigns import (
    FIXED,
    assert_same_records,
    run_campaign_command,
    start_campaign,
    write_campaign,
)
from support.configs import NINE
from support.runs import until

ASKED = ("launch=slurm", "hydra.launcher.cpus_per_task=1")
# This run takes some 40 seconds.
SLOW = ("train.num_steps=3000", "train.save_every=50", "train.eval_every=3000")

NEEDED = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scontrol", "scancel")
# Debian's packages install daemons in /usr/sbin, which a user's PATH may lack.
PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin"])

CONF = """
ClusterName=rope
SlurmctldHost={host}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=0
KillWait=5
MinJobAge=5
SlurmdTimeout=10
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SchedulerParameters=sched_interval=2,preempt_youngest_first
MaxJobCount=200
NodeName={host} CPUs={cpus}
PartitionName=main Nodes=ALL Default=YES PriorityTier=1 GraceTime=60
PartitionName=urgent Nodes=ALL PriorityTier=9
"""


def missing() -> str:
    """Return the reason why SLURM cannot be started here, or an empty string if it can."""
    if os.geteuid() != 0:
        return "a SLURM of one machine needs root"
    found = [name for name in NEEDED if not shutil.which(name, path=PATH)]
    return f"{', '.join(found)} not found: apt-get install slurm-wlm munge" if found else ""


pytestmark = [pytest.mark.cluster, pytest.mark.skipif(bool(missing()), reason=missing())]


class Slurm:
    """A cluster on this machine: munged, slurmctld and slurmd, with all files in one folder.

    `environment` makes SLURM's commands use this cluster.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("state", "spool"):
            (folder / name).mkdir()
        ports = []
        for _ in range(2):
            with socket.create_server(("localhost", 0)) as server:
                ports.append(server.getsockname()[1])
        conf = folder / "slurm.conf"
        host, cpus = socket.gethostname(), os.cpu_count() or 1
        conf.write_text(CONF.format(host=host, folder=folder, ports=ports, cpus=cpus))
        self.environment = {"SLURM_CONF": str(conf), "PATH": PATH}
        (folder / "munge.key").write_bytes(os.urandom(128))
        (folder / "munge.key").chmod(0o600)
        folder.chmod(0o755)
        names = {"key-file": "munge.key", "socket": "munge.sock", "pid-file": "munged.pid"}
        names |= {"log-file": "munged.log", "seed-file": "munge.seed"}
        files = [f"--{option}={folder}/{name}" for option, name in names.items()]
        self._daemons = [self._start("munged", "--foreground", "--force", *files)]
        until(lambda: (folder / "munge.sock").exists())
        self._daemons.append(self._start("slurmctld", "-D"))
        self._daemons.append(self._start("slurmd", "-D"))
        until(lambda: "idle" in self.command("sinfo", "--noheader", "-o", "%T", check=False))

    def _start(self, *words: str) -> "subprocess.Popen[bytes]":
        log = (self.folder / f"{words[0]}.out").open("wb")
        with log:
            return subprocess.Popen(
                words,
                env=os.environ | self.environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def command(self, *words: str, check: bool = True) -> str:
        done = subprocess.run(
            words, env=os.environ | self.environment, capture_output=True, text=True, check=check
        )
        return done.stdout

    def close(self) -> None:
        self.command("scancel", "--user=root", "--signal=KILL", "--full", check=False)
        self.command("scancel", "--user=root", check=False)
        with suppress(TimeoutError):
            until(lambda: not self.command("squeue", "--noheader", check=False), seconds=20)
        for daemon in reversed(self._daemons):
            daemon.send_signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                daemon.wait(10)
            daemon.kill()
            daemon.wait()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    made = Slurm(tmp_path_factory.mktemp("slurm"))
    yield made
    made.close()


def home_of(folder: Path, corpus: Path, rows: tuple[str, ...], *words: str) -> Path:
    """Return a folder with a campaign of these rows and one seed."""
    folder.mkdir()
    (folder / "corpus").symlink_to(corpus)
    write_campaign(folder, fixed=[*FIXED, *words], rows={row: [f"pe={row}"] for row in rows})
    return folder


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory, corpus: Path, cache: Path) -> Path:
    """Return the folder of the undisturbed campaign of one slow run."""
    home = home_of(tmp_path_factory.mktemp("slow") / "home", corpus, ("vo_rope",), *SLOW)
    process = start_campaign(home, ROPE_EXP_CACHE=str(cache))
    _, stderr = process.communicate(timeout=400)
    assert process.returncode == 0, stderr
    return home


class Submitter:
    """The campaign command in one folder, with the cluster's environment."""

    def __init__(self, cluster: Slurm, home: Path, cache: Path) -> None:
        self.cluster = cluster
        self.home = home
        self._environment = cluster.environment | {"ROPE_EXP_CACHE": str(cache)}

    def __call__(self, *words: str) -> str:
        done = run_campaign_command(self.home, *words, **self._environment)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def refused(self, *words: str) -> str:
        process = start_campaign(self.home, *words, **self._environment)
        # sbatch itself retries a full queue for two minutes.
        _, stderr = process.communicate(timeout=300)
        assert process.returncode != 0
        return stderr

    def jobs(self, *words: str) -> list[str]:
        """Return the ids of the jobs that have not ended."""
        return self.cluster.command("squeue", "--noheader", "-o", "%A", *words).split()

    def step(self) -> int:
        """Return the last step of the campaign's only run."""
        match = re.search(r"step ([\d,]+) of", self("--list"))
        return int(match[1].replace(",", "")) if match else 0

    def wait_for_restart(self, job: str, seconds: float) -> None:
        until(lambda: "Restarts=1" in self.cluster.command("scontrol", "show", "job", job), seconds)

    def wait_for_end(self, seconds: float = 240) -> None:
        """Wait until no job is left, and let requeued jobs begin at once."""

        def is_empty() -> bool:
            for job in self.jobs("-t", "PD"):
                words = ("scontrol", "update", f"JobId={job}", "StartTime=now")
                self.cluster.command(*words, check=False)
            return not self.jobs()

        until(is_empty, seconds)


@pytest.fixture
def begun(cluster: Slurm, tmp_path: Path, corpus: Path, cache: Path) -> Submitter:
    """Return the submitter of the slow campaign, whose only run is under way."""
    submit = Submitter(cluster, home_of(tmp_path / "home", corpus, ("vo_rope",), *SLOW), cache)
    submit(*ASKED)
    until(lambda: submit.step() > 100, 60)
    return submit


def test_nine_runs_are_an_array_that_is_submitted_once(
    cluster: Slurm, tmp_path: Path, corpus: Path, cache: Path
) -> None:
    alone = home_of(tmp_path / "alone", corpus, NINE)
    assert run_campaign_command(alone, ROPE_EXP_CACHE=str(cache)).returncode == 0
    submit = Submitter(cluster, home_of(tmp_path / "home", corpus, NINE), cache)

    assert "submitted 9 runs, jobs " in submit(*ASKED)
    assert "nothing to submit; " in submit(*ASKED)
    assert re.search(r"(queued|running), job \d+_\d", submit("--list"))
    submit.wait_for_end()
    assert "9 of 9 cells have a record" in submit("--list")
    assert_same_records(submit.home, alone)
    assert "nothing to submit" in submit(*ASKED)


def test_a_cancelled_run_goes_on_when_it_is_submitted_again(
    cluster: Slurm, begun: Submitter, slow: Path
) -> None:
    cluster.command("scancel", *begun.jobs())
    begun.wait_for_end()
    assert "failed or stopped, see results/slurm/mine/" in begun("--list")
    assert begun.step() < 3000
    begun(*ASKED)
    begun.wait_for_end()
    assert_same_records(begun.home, slow)


def test_a_time_limit_saves_and_requeues(
    cluster: Slurm, tmp_path: Path, corpus: Path, cache: Path
) -> None:
    """SLURM signals up to a minute early: here, after 30 to 90 s of a limit of two minutes."""
    words = ("train.num_steps=20000", "train.save_every=50", "train.eval_every=20000")
    alone = home_of(tmp_path / "alone", corpus, ("vo_rope",), *words)
    submit = Submitter(cluster, home_of(tmp_path / "home", corpus, ("vo_rope",), *words), cache)
    submit(*ASKED, "hydra.launcher.timeout_min=2", "hydra.launcher.signal_delay_s=30")
    [job] = submit.jobs()
    submit.wait_for_restart(job, 150)
    assert 0 < submit.step() < 20000
    undisturbed = start_campaign(alone, ROPE_EXP_CACHE=str(cache))
    submit.wait_for_end(400)
    undisturbed.communicate(timeout=400)
    assert_same_records(submit.home, alone)


def test_a_preempted_run_goes_on(cluster: Slurm, begun: Submitter, slow: Path) -> None:
    """A job of a partition with a higher priority takes the whole node."""
    [job] = begun.jobs()
    cluster.command("sbatch", "-p", "urgent", "--exclusive", "-o", "/dev/null", "--wrap", "sleep 3")
    begun.wait_for_restart(job, 90)
    begun.wait_for_end()
    assert_same_records(begun.home, slow)


def test_what_slurm_refuses_is_one_sentence(
    cluster: Slurm, tmp_path: Path, corpus: Path, cache: Path
) -> None:
    submit = Submitter(cluster, home_of(tmp_path / "home", corpus, NINE), cache)
    assert "invalid partition" in submit.refused(*ASKED, "hydra.launcher.partition=none")
    cluster.command("scontrol", "update", "PartitionName=main", "State=DRAIN")
    assert "launch=slurm: sbatch: error" in submit.refused(*ASKED)
    cluster.command("scontrol", "update", "PartitionName=main", "State=UP")
    assert "left" in submit("--list")
