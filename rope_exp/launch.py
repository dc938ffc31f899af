"""The dispatcher: checks every run, prepares their data once, then starts one fresh child a run and waits.

A sweep is the same with more runs: each leases its GPUs (one lock file a GPU, held by the child too, so that a lease
lives as long as the work), a failed run never stops the others, a run with a result.json is not started again, and a
rerun goes on where each run stopped. No torch in this process.
"""

import fcntl
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from rope_exp.config import DEFAULT_OUTPUT, RunConfig, differing_keys
from rope_exp.data import prepare
from rope_exp.flops import checkpoint_bytes
from rope_exp.live import LiveTable
from rope_exp.machine import gpus, num_cores
from rope_exp.record import CONFIG, check_space, describe, hold, read_config, read_result, write_config
from rope_exp.schema import ConfigError
from rope_exp.stop import EXIT_STOPPED, REPEAT_SECONDS

LOG = "log.txt"
POLL_SECONDS = 0.1
GRACE_SECONDS = 5.0  # between a rank's failure and the end of the ranks that wait for it
STOP_SECONDS = 60.0  # the same where the rank was stopped: the first rank saves meanwhile
REPOSITORY = Path(__file__).resolve().parent.parent


@dataclass
class Cell:
    """One run of a dispatch."""

    config: RunConfig
    folder: Path
    ranks: list[subprocess.Popen[bytes]] = field(default_factory=list)
    left_at: float | None = None  # when a rank was first seen to have ended before its time
    leases: list["Lease"] = field(default_factory=list)
    exit_code: int | None = None  # of this dispatch; None: not ended yet

    @property
    def status(self) -> str:
        """finished, diverged, failed, stopped, running or waiting."""
        if self.exit_code is None:
            return "running" if self.ranks else "waiting"
        return {0: "finished", 3: "diverged", EXIT_STOPPED: "stopped"}.get(self.exit_code, "failed")


def dispatch(configs: Sequence[RunConfig]) -> int:
    """Bring every run to its end. Returns the exit code: 0, or that of the one run, or 1 if any of several failed.

    Raises:
        ConfigError, DataError, DiskError: before anything is written.
    """
    cells = plan(configs)
    waiting = [cell for cell in cells if cell.exit_code is None]
    for cell in waiting:
        open_folder(cell)
    if len(cells) == 1:
        return _run_one(cells[0])
    return _run_all(cells)


def plan(configs: Sequence[RunConfig]) -> list[Cell]:
    """Check everything that can be checked before anything is written; runs that are done are marked so."""
    cells = [Cell(config, config.folder) for config in configs]
    by_folder: dict[Path, Cell] = {}
    if len(cells) > 1 and any(cell.config.launch.inline for cell in cells):
        raise ConfigError("launch", "inline", "runs in this very process, and a sweep has several runs")
    for cell in cells:
        clash = by_folder.setdefault(cell.folder.absolute(), cell)
        if clash is not cell:
            raise ConfigError("run.dir", str(cell.folder), f"two runs of the sweep ({cell.config.name}) would share it")
        _check_folder(cell)
        _check_group(cell)
    needed_bytes = 0
    for cell in cells:
        if cell.exit_code is None:
            config = cell.config
            prepared = prepare(config.data, config.tokenizer, seq_len=config.train.seq_len)
            # A save stands beside those that are kept until they are pruned; the runs of a sweep all keep theirs.
            needed_bytes += (config.train.keep_checkpoints + 1) * checkpoint_bytes(config, prepared.vocab_size)
            check_space(cell.folder, needed_bytes, "the checkpoints' room")
    return cells


def _check_folder(cell: Cell) -> None:
    """Refuse a folder that belongs to another config, and see whether the run is done."""
    if not cell.folder.exists():
        return
    if not cell.folder.is_dir():
        raise ConfigError("run.dir", str(cell.folder), "is a file; a run needs a folder")
    if not (cell.folder / CONFIG).exists():
        if any(path.name != ".lock" for path in cell.folder.iterdir()):
            raise ConfigError("run.dir", str(cell.folder), "holds files that are no run; choose another folder")
        return
    if cell.config.run.fresh:
        return
    differing = differing_keys(read_config(cell.folder).numeric_dict(), cell.config.numeric_dict())
    if differing:
        raise ConfigError(
            "run.dir",
            str(cell.folder),
            f"belongs to another config ({'; '.join(differing)}); choose another run.dir or run.group, "
            "or move it aside with run.fresh=true",
        )
    result = read_result(cell.folder)
    if result is not None:
        cell.exit_code = 3 if result["status"] == "diverged" else 0


def open_folder(cell: Cell) -> None:
    """Make the run folder and write its config; with run.fresh an old one is moved aside, never deleted.

    Raises:
        ConfigError: another process is running this run; nothing was changed.
    """
    if cell.folder.exists():
        with hold(cell.folder):
            _check_folder(cell)  # again: another command may have made it since
            if cell.config.run.fresh:
                cell.folder.rename(_aside(cell.folder))
            else:
                _write_config(cell)
    if not cell.folder.exists():
        cell.folder.mkdir(parents=True)
        _write_config(cell)


def _check_group(cell: Cell) -> None:
    """Refuse a run that could not stand in one table with its group's others, before it is computed."""
    if cell.config.run.dir is not None:
        return
    for path in sorted((DEFAULT_OUTPUT / cell.config.group).glob(f"*/seed*/{CONFIG}")):
        if path.parent == cell.folder:
            continue
        other = read_config(path.parent)
        if other.group_sha256 != cell.config.group_sha256:
            old, new = (config.group_dict() for config in (other, cell.config))
            raise ConfigError(
                "run.group",
                cell.config.group,
                f"holds runs of another config ({'; '.join(differing_keys(old, new))}); choose another name, or null",
            )
        return


def _aside(folder: Path) -> Path:
    number = 1
    while (aside := folder.with_name(f".{folder.name}.old-{number}")).exists():
        number += 1
    return aside


def _write_config(cell: Cell) -> None:
    # A later start of the same run goes on in this folder; only its first start is fresh.
    write_config(cell.folder, cell.config.replace("run", fresh=False, dir=str(cell.folder), group=cell.config.group))


def _run_one(cell: Cell) -> int:
    if cell.exit_code is not None:
        done = read_result(cell.folder)
        assert done is not None
        print(f"{cell.folder} is done: {describe(done)}; run.fresh=true runs it anew")
        return cell.exit_code
    if cell.config.launch.inline:
        from rope_exp import worker
        from rope_exp.stop import StopSignal

        return worker.guarded(lambda: worker.run(cell.config, cell.folder, StopSignal()))
    return _start_and_wait(cell)


def _start_and_wait(cell: Cell) -> int:
    with _Stopper([cell]) as stopper:
        leases = lease_gpus(cell.config)
        if leases is None:
            print(f"{cell.config.name}: every GPU is leased to another run; waiting for one", file=sys.stderr)
        while leases is None:
            if stopper.asked:
                return EXIT_STOPPED
            time.sleep(1)
            leases = lease_gpus(cell.config)
        _start(cell, leases, None)
        stopper.pass_on()
        while cell.exit_code is None:
            _collect([cell])
            time.sleep(POLL_SECONDS)
    return cell.exit_code


def _run_all(cells: list[Cell]) -> int:
    with _Stopper(cells) as stopper, LiveTable(cells) as table:
        while any(cell.exit_code is None for cell in cells):
            for cell in cells:
                running = sum(other.status == "running" for other in cells)
                limit = cell.config.launch.max_parallel
                if cell.status != "waiting" or not isinstance(limit, int) or running >= limit:
                    continue
                if stopper.asked:
                    cell.exit_code = EXIT_STOPPED
                elif (leases := lease_gpus(cell.config)) is not None:
                    _start(cell, leases, cell.folder / LOG)
                    stopper.pass_on()
            _collect(cells)
            table.refresh()
            time.sleep(POLL_SECONDS)
    failed = [cell for cell in cells if cell.status in ("failed", "diverged")]
    for cell in failed:
        name = cell.config.name
        print(f"{name}: {cell.status} (exit code {cell.exit_code}), see {cell.folder / LOG}", file=sys.stderr)
    if any(cell.status == "stopped" for cell in cells):
        print("stopped; the same command goes on", file=sys.stderr)
        return EXIT_STOPPED
    groups = sorted({cell.config.group for cell in cells if cell.config.run.dir is None})
    for group in groups:
        print(f"in {DEFAULT_OUTPUT / group}; its table: python scripts/report.py --group {group}", file=sys.stderr)
    return 1 if failed else 0


# -- children -------------------------------------------------------------------------------------------------------


def _start(cell: Cell, leases: list["Lease"], log: Path | None) -> None:
    """Start the run's fresh child: one process a rank, the rendezvous in its environment (docs/decisions/002)."""
    launch = cell.config.launch
    assert isinstance(launch.num_processes, int) and isinstance(launch.max_parallel, int)
    environment = dict(os.environ)
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH")]))
    environment.setdefault("OMP_NUM_THREADS", str(max(num_cores() // (launch.num_processes * launch.max_parallel), 1)))
    if launch.device == "cpu":
        environment["ACCELERATE_USE_CPU"] = "true"
    if leases:
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(lease.gpu for lease in leases)
    if launch.num_processes > 1:
        environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port())}
        environment |= {"WORLD_SIZE": str(launch.num_processes), "LOCAL_WORLD_SIZE": str(launch.num_processes)}
    output: IO[bytes] | None = log.open("ab") if log else None
    cell.leases = leases
    environment["ROPE_EXP_DISPATCHER"] = str(os.getpid())
    for rank in range(launch.num_processes):
        own = {"RANK": str(rank), "LOCAL_RANK": str(rank)} if launch.num_processes > 1 else {}
        process = subprocess.Popen(
            [sys.executable, "-m", "rope_exp.worker", str(cell.folder)],
            env=environment | own,
            stdout=output,
            stderr=subprocess.STDOUT if output else None,
            pass_fds=[lease.descriptor for lease in leases],
            start_new_session=True,  # a terminal's Ctrl-C reaches the dispatcher alone, which passes it on once
        )
        cell.ranks.append(process)
    if output:
        output.close()


def _collect(cells: list[Cell]) -> None:
    """Note the runs that have ended; where one rank has failed, the others are ended too."""
    for cell in cells:
        if not cell.ranks or cell.exit_code is not None:
            continue
        # A rank that SIGTERM ended before it could listen had done nothing that is lost.
        codes = [EXIT_STOPPED if (code := rank.poll()) == -signal.SIGTERM else code for rank in cell.ranks]
        failures = [code for code in codes if code not in (None, 0, 3, EXIT_STOPPED)]
        if any(codes) and cell.left_at is None:
            cell.left_at = time.monotonic()
        if None in codes:
            grace = GRACE_SECONDS if failures else STOP_SECONDS
            if cell.left_at is not None and time.monotonic() - cell.left_at > grace:
                for rank in cell.ranks:
                    rank.kill()
            continue
        # A rank that a signal ended, or that raised, is a failure: 1. Its own word counts where it is a contract's: 2.
        cell.exit_code = (2 if 2 in failures else 1) if failures else max(code or 0 for code in codes)
        for lease in cell.leases:
            lease.release()


class _Stopper:
    """Passes SIGTERM and SIGINT on to the ranks; a second one ends them at once."""

    def __init__(self, cells: list[Cell]) -> None:
        self.asked, self._asked_at, self._cells = False, 0.0, cells

    def __enter__(self) -> "_Stopper":
        self._previous = {number: signal.signal(number, self._handle) for number in (signal.SIGTERM, signal.SIGINT)}
        return self

    def __exit__(self, *exc_info: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: object) -> None:
        now = time.monotonic()
        if self.asked and now - self._asked_at < REPEAT_SECONDS:
            return
        self._asked_at = now if not self.asked else self._asked_at
        if self.asked:  # a rank inside a long operation does not hear its second signal: the last checkpoint stands
            for cell in self._cells:
                for rank in cell.ranks:
                    rank.kill()
        self.asked = True
        self.pass_on()

    def pass_on(self) -> None:
        """If asked to stop, ask every rank that runs: also one that was just being started when we were asked."""
        for cell in self._cells if self.asked else []:
            for rank in cell.ranks:
                if rank.poll() is None:
                    rank.send_signal(signal.SIGTERM)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port: int = probe.getsockname()[1]
        return port


# -- GPUs -----------------------------------------------------------------------------------------------------------


@dataclass
class Lease:
    """One GPU of this machine, held by a lock on a file that every dispatcher of the machine knows."""

    gpu: str
    descriptor: int

    def release(self) -> None:
        """Give it back; a child that inherited the descriptor keeps the lock while it lives."""
        os.close(self.descriptor)


def _num_gpus(config: RunConfig) -> int:
    assert isinstance(config.launch.num_processes, int)
    return config.launch.num_processes if config.launch.device == "cuda" else 0


def lease_gpus(config: RunConfig) -> list[Lease] | None:
    """Lease the GPUs of one run, all or none; None if too few are free now."""
    leases: list[Lease] = []
    folder = Path(tempfile.gettempdir()) / "rope_exp-gpus"
    for gpu in gpus() if _num_gpus(config) else []:
        if not folder.exists():
            folder.mkdir(exist_ok=True)
            folder.chmod(0o777)  # shared by the users of the machine, whatever this one's umask
        descriptor = os.open(folder / f"{gpu}.lock", os.O_CREAT | os.O_RDONLY, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            continue
        leases.append(Lease(gpu, descriptor))
        if len(leases) == _num_gpus(config):
            return leases
    if len(leases) == _num_gpus(config):
        return leases
    for lease in leases:
        lease.release()
    return None
