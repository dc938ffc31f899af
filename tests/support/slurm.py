"""A SLURM cluster on one machine: munged, slurmctld and slurmd, with all files in one folder."""

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

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


class Slurm:
    """The cluster's daemons; `environment` makes SLURM's commands use this cluster."""

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
                words, env=os.environ | self.environment, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip

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


def until(is_so: Callable[[], object], seconds: float = 30.0) -> None:
    """Wait until `is_so()` is true, or raise TimeoutError."""
    end = time.monotonic() + seconds
    while not is_so():
        if time.monotonic() > end:
            raise TimeoutError(f"not within {seconds:.0f} s")
        time.sleep(0.3)
