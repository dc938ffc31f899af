"""Tests of a run by torchrun on two hosts: network namespaces, a cable, and a shared disk."""

import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.runs import Process, Trial, assert_same_run, start, train, wait_for

from rope_exp.checkpoint import load
from rope_exp.files import read_json
from rope_exp.parallel import BEAT_SECONDS, PATIENCE

pytestmark = pytest.mark.cluster

# The time that torchrun takes to end after its rank, on a busy machine.
TORCHRUN_SECONDS = 30.0


@dataclass(frozen=True)
class Host:
    """A network namespace and its device, one end of the cable; torchrun's rendezvous is on 0."""

    node_rank: int
    name: str

    def ip(self, *words: str) -> None:
        """Run `ip` in this namespace."""
        ip("-n", self.name, *words)

    def start(self, trial: Trial) -> Process:
        """Start torchrun here for a run in the shared folder."""
        torchrun = ["-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1"]
        torchrun += [f"--node-rank={self.node_rank}", "--master-addr=10.77.0.1"]
        return start(
            *trial.words,
            "launch.device=cpu",
            cwd=trial.folder.parent,
            within=("ip", "netns", "exec", self.name),
            launcher=tuple(torchrun),
            ACCELERATE_USE_CPU="true",
            GLOO_SOCKET_IFNAME=self.name,
        )

    def processes(self) -> list[int]:
        """Return the ids of all processes on this host."""
        return [int(pid) for pid in ip("netns", "pids", self.name).split()]

    def kill(self) -> None:
        """Kill every process on this host: torchrun and its rank."""
        for pid in self.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def ip(*words: str) -> str:
    return subprocess.run(["ip", *words], check=True, capture_output=True, text=True).stdout


@pytest.fixture
def hosts() -> Iterator[list[Host]]:
    """Yield two hosts with a cable; afterwards, remove them and their processes."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root and the command ip")
    hosts = [Host(rank, f"rope{rank}-{os.getpid()}") for rank in (0, 1)]
    try:
        for host in hosts:
            ip("netns", "add", host.name)
        first, second = hosts
        cable = ("netns", first.name, "type", "veth", "peer", second.name, "netns", second.name)
        ip("link", "add", first.name, *cable)
        for host in hosts:
            host.ip("address", "add", f"10.77.0.{host.node_rank + 1}/24", "dev", host.name)
            host.ip("link", "set", "lo", "up")
            host.ip("link", "set", host.name, "up")
        yield hosts
    finally:
        for host in hosts:
            with suppress(subprocess.CalledProcessError):
                host.kill()
                ip("netns", "delete", host.name)


@pytest.fixture
def trial(whole: tuple[Path, list[str]], tmp_path: Path) -> Trial:
    """Return a run of 400 steps for two hosts; two processes of one host have trained it."""
    words = [*whole[1], "train.num_steps=400", "train.save_every=20", "train.eval_every=100"]
    undisturbed = tmp_path / "undisturbed"
    done = train(*words, "launch.num_processes=2", f"run.dir={undisturbed}", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    return Trial(command=tuple(words), folder=tmp_path / "run", undisturbed=undisturbed)


def lose(hosts: list[Host], trial: Trial, harm: Callable[[], None]) -> None:
    """Harm a run of two hosts after 50 rows; what is left ends in time, and checkpoints verify."""
    processes = [host.start(trial) for host in hosts]
    wait_for(lambda: trial.num_rows() >= 50, processes[0])
    harm()
    deadline = time.monotonic() + BEAT_SECONDS + PATIENCE.total_seconds() + TORCHRUN_SECONDS
    for host, process in zip(hosts, processes, strict=True):
        _, stderr = process.communicate(timeout=deadline - time.monotonic())
        if process.returncode != -signal.SIGKILL:
            assert process.returncode == 1
            assert re.search("process of this run is gone or silent|gloo|Dist", stderr), stderr
        assert not host.processes()
    assert trial.num_rows() < 400
    assert trial.checkpoints()
    for step in trial.checkpoints():
        load(trial.folder / "checkpoints", step)


def assert_two_hosts_end_equal(hosts: list[Host], trial: Trial) -> None:
    """Assert that both hosts finish the run of two local processes, bit for bit."""
    for process in [host.start(trial) for host in hosts]:
        _, stderr = process.communicate(timeout=240)
        assert process.returncode == 0, stderr
    assert read_json(trial.folder / "env.json")["world_size"] == 2
    assert_same_run(trial.undisturbed, trial.folder)


def test_a_cut_cable_ends_both_hosts(hosts: list[Host], trial: Trial) -> None:
    """Neither host receives a packet about the cut. They resume once the cable is back."""
    lose(hosts, trial, lambda: hosts[0].ip("link", "set", hosts[0].name, "down"))
    hosts[0].ip("link", "set", hosts[0].name, "up")
    assert_two_hosts_end_equal(hosts, trial)


@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_host_ends_the_other(hosts: list[Host], trial: Trial, victim: int) -> None:
    lose(hosts, trial, hosts[victim].kill)
    assert_two_hosts_end_equal(hosts, trial)
