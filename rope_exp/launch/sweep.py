"""The dispatcher: checks every run, prepares their data once, then starts one fresh child a run and waits.

A sweep is the same with more runs: each leases its GPUs (one lock file a GPU) and takes its folder's lock, both held by
the child too, so that they live as long as the work. A failed run never stops the others, a run with a result.json is
not started again, one that another sweep is running is waited for, and a rerun goes on where each run stopped. No torch
in this process.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from rope_exp.config.costs import checkpoint_bytes
from rope_exp.config.resolve import check_memory
from rope_exp.config.run import DEFAULT_OUTPUT, RunConfig, differing_keys
from rope_exp.data.meta import Prepared
from rope_exp.data.prepare import prepare
from rope_exp.launch.leases import Lease, lease_gpus
from rope_exp.launch.view import LiveTable
from rope_exp.run.folder import (
    CONFIG,
    LOCK,
    describe,
    read_config,
    read_result,
    write_config,
)
from rope_exp.run.metrics import METRICS, last_step
from rope_exp.system.console import say
from rope_exp.system.errors import EXIT_STOPPED, ConfigError, RecordError
from rope_exp.system.files import check_space, disk_full, free_bytes, is_full, try_lock
from rope_exp.system.machine import num_cores
from rope_exp.system.processes import child_environment
from rope_exp.system.signals import REPEAT_SECONDS, STOP_SIGNALS

LOG, FAILURE = "log.txt", ".failure-"
WITHOUT_FRESH = "leave out run.fresh=true to go on: with it, the same command begins anew"
POLL_SECONDS = 0.1
LOCK_SECONDS = 5.0  # long enough for a process that was just killed to be gone
ELSEWHERE_SECONDS = 1.0  # between two looks at a run that another dispatcher is running
GRACE_SECONDS = 5.0  # between a rank's failure and the end of the ranks that wait for it
STOP_SECONDS = 60.0  # the same where the rank was stopped: the first rank saves meanwhile


@dataclass(frozen=True)
class Ended:
    """How a rank ended: its exit code (minus the signal that ended it), and when that was seen."""

    code: int
    at: float


@dataclass
class Cell:
    """One run of a dispatch."""

    config: RunConfig
    folder: Path
    lock: int | None = None  # the descriptor that holds the folder's lock
    looked_at: float | None = None  # when another dispatcher was last seen to hold it
    ranks: list[subprocess.Popen[bytes]] = field(default_factory=list)
    ended: dict[int, Ended] = field(default_factory=dict)  # by rank
    were_killed: bool = False  # those ranks that had not ended, by us
    leases: list[Lease] = field(default_factory=list)
    exit_code: int | None = None  # of this dispatch; None: not ended yet
    needed_bytes: int = 0  # of one checkpoint
    log: Path | None = None  # where its ranks write; None: to the terminal
    reason: str = ""  # of a failure, where no rank's own word is enough

    @property
    def status(self) -> str:
        """finished, diverged, failed, stopped, running, elsewhere or waiting."""
        if self.exit_code is None:
            return "running" if self.ranks else "waiting" if self.looked_at is None else "elsewhere"
        return {0: "finished", 3: "diverged", EXIT_STOPPED: "stopped"}.get(self.exit_code, "failed")


def dispatch(configs: Sequence[RunConfig]) -> int:
    """Bring every run to its end. Returns the exit code: 0, or that of the one run, or 1 if any of several failed.

    Raises:
        ConfigError, DataError, DiskError: before anything is written.
    """
    cells = plan(configs)
    for cell in cells:
        if cell.exit_code is None:
            _make_folder(cell)
    if len(cells) == 1:
        return _run_one(cells[0])
    return _run_all(cells)


def plan(configs: Sequence[RunConfig]) -> list[Cell]:
    """Check everything that can be checked before anything is written; runs that are done are marked so."""
    cells = [Cell(config, config.folder) for config in configs]
    by_folder: dict[Path, Cell] = {}
    if len(cells) > 1 and any(cell.config.launch.inline for cell in cells):
        raise ConfigError(
            "launch", "inline", "runs in this very process, and a sweep has several runs"
        )
    others: dict[str, RunConfig | None] = {}
    fresh = {cell.folder for cell in cells if cell.config.run.fresh}
    for cell in cells:
        clash = by_folder.setdefault(cell.folder.absolute(), cell)
        if clash is not cell:
            raise ConfigError(
                "run.dir",
                str(cell.folder),
                f"two runs of the sweep ({cell.config.name}) would share it",
            )
        _check_folder(cell)
        if cell.config.run.dir is None:
            group = cell.config.group
            if group not in others:
                others[group] = _any_of_group(group, fresh)
            _check_group(cell, others[group])
    _check_room([cell for cell in cells if cell.exit_code is None])
    return cells


def _check_room(cells: list[Cell]) -> None:
    """Prepare what the runs read, and refuse them where they would not fit on the disk (or in memory)."""
    prepared: dict[tuple[Any, ...], Prepared] = {}  # many runs, one corpus
    needed_bytes = 0
    for cell in cells:
        data, tokenizer, train = cell.config.data, cell.config.tokenizer, cell.config.train
        key = (data, tokenizer, train.seq_len)
        if key not in prepared:
            prepared[key] = prepare(data, tokenizer, seq_len=train.seq_len)
        if tokenizer.known_vocab_size is None:
            check_memory(cell.config, prepared[key].vocab_size)
        # A save stands beside those that are kept until they are pruned; the runs of a sweep all keep theirs.
        saved = (
            0 if cell.config.run.fresh else len(list((cell.folder / "checkpoints").glob("step_*")))
        )
        cell.needed_bytes = checkpoint_bytes(cell.config, prepared[key].vocab_size)
        needed_bytes += max(2, train.keep_checkpoints + 1 - saved) * cell.needed_bytes
        check_space(cell.folder, needed_bytes, "the checkpoints' room")


def _check_folder(cell: Cell) -> None:
    """Refuse a folder that belongs to another config, and see whether the run is done."""
    if not cell.folder.exists():
        return
    if not cell.folder.is_dir():
        raise ConfigError("run.dir", str(cell.folder), "is a file; a run needs a folder")
    if not (cell.folder / CONFIG).exists():
        if {path.name for path in cell.folder.iterdir()} - {
            LOCK,
            f".{CONFIG}.new",
        }:  # of a start that was killed
            raise ConfigError(
                "run.dir", str(cell.folder), "holds files that are no run; choose another folder"
            )
        return
    if cell.config.run.fresh:
        return
    before = read_config(cell.folder)
    differing = differing_keys(before.numeric_dict(), cell.config.numeric_dict())
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
    elif (step := last_step(cell.folder)) > before.train.save_every and not _has_checkpoint(
        cell.folder
    ):
        raise ConfigError(
            "run.dir",
            str(cell.folder),
            f"has metrics up to step {step} and no checkpoint; restore its checkpoints/, or use run.fresh=true",
        )


def _has_checkpoint(folder: Path) -> bool:
    """Whether there is one that the run could go on from; a link to one is none (see checkpoint.list_steps)."""
    return any(
        path.is_dir() and not path.is_symlink() for path in (folder / "checkpoints").glob("step_*")
    )


def _make_folder(cell: Cell) -> None:
    try:
        cell.folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        if is_full(error):
            raise
        raise ConfigError(
            "run.dir", str(cell.folder), f"cannot be made: {error.strerror}"
        ) from None


def claim(cell: Cell) -> bool:
    """Take the run's lock, look again, write its config; with run.fresh an old folder is moved aside, never deleted.

    Returns:
        False if another process holds the lock. True otherwise; the run may prove to be done (`exit_code`).
    """
    _make_folder(cell)
    cell.lock = try_lock(cell.folder / LOCK)
    if cell.lock is None:
        cell.looked_at = time.monotonic()
        return False
    cell.looked_at = None
    try:
        _check_folder(cell)  # again: another command may have made or finished it since
        if cell.config.run.fresh and (cell.folder / CONFIG).exists():
            cell.folder.rename(_aside(cell.folder))
            unlock(cell)
            return claim(cell)
        if cell.exit_code is None:
            if cell.config.run.dir is None and not cell.config.run.fresh:
                _check_group(cell, _any_of_group(cell.config.group, {cell.folder}))
            if not _has_checkpoint(
                cell.folder
            ):  # it begins anew, whatever became of rows before the first save
                (cell.folder / METRICS).unlink(missing_ok=True)
            # A later start of the same run goes on in this folder; only its first start is fresh.
            placed = cell.config.replace(
                "run", fresh=False, dir=str(cell.folder), group=cell.config.group
            )
            write_config(cell.folder, placed)
    except BaseException:
        unlock(cell)
        raise
    if cell.exit_code is not None:
        unlock(cell)
    return True


def unlock(cell: Cell) -> None:
    """Give the lock back; a child that inherited the descriptor keeps it while it lives."""
    if cell.lock is not None:
        os.close(cell.lock)
        cell.lock = None


def take(cell: Cell) -> None:
    """Claim the one run of a command.

    Raises:
        ConfigError: another process is running it; nothing was changed.
    """
    deadline = time.monotonic() + LOCK_SECONDS
    while not claim(cell):
        if time.monotonic() > deadline:
            raise ConfigError(
                "run.dir", str(cell.folder), "another process is running this run; wait for it"
            )
        time.sleep(POLL_SECONDS)


def _any_of_group(group: str, leaving_out: set[Path]) -> RunConfig | None:
    """The config of some run of a group."""
    for path in sorted((DEFAULT_OUTPUT / group).glob(f"*/seed*/{CONFIG}")):
        if path.parent not in leaving_out:
            return read_config(path.parent)
    return None


def _check_group(cell: Cell, other: RunConfig | None) -> None:
    """Refuse a run that could not stand in one table with its group's others, before it is computed."""
    if other is not None and other.group_sha256 != cell.config.group_sha256:
        differing = differing_keys(other.group_dict(), cell.config.group_dict())
        raise ConfigError(
            "run.group",
            cell.config.group,
            f"holds runs of another config ({'; '.join(differing)}); choose another name, or null",
        )


def _aside(folder: Path) -> Path:
    number = 1
    while (aside := folder.with_name(f".{folder.name}.old-{number}")).exists():
        number += 1
    return aside


def _run_one(cell: Cell) -> int:
    if cell.exit_code is None:
        take(cell)
    if cell.exit_code is not None:
        done = read_result(cell.folder)
        assert done is not None
        print(f"{cell.folder} is done: {describe(done)}; run.fresh=true runs it anew")
        return cell.exit_code
    if cell.config.launch.inline:
        from rope_exp.system.signals import StopSignal
        from rope_exp.training import worker

        return worker.explain_errors(lambda: worker.run(cell.config, cell.folder, StopSignal()))
    return _start_and_wait(cell)


def _start_and_wait(cell: Cell) -> int:
    with _Stopper([cell]) as stopper:
        leases = lease_gpus(cell.config)
        if leases is None:
            say(f"{cell.config.name}: every GPU is leased to another run; waiting for one")
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
    if cell.reason:
        say(f"error: {cell.config.name}: {cell.reason}")
    if cell.exit_code == EXIT_STOPPED and cell.config.run.fresh:
        say(WITHOUT_FRESH)
    return cell.exit_code


def _run_all(cells: list[Cell]) -> int:
    with _Stopper(cells) as stopper, LiveTable(cells) as table:
        while any(cell.exit_code is None for cell in cells):
            running = sum(cell.status == "running" for cell in cells)
            for cell in cells:
                limit = cell.config.launch.max_parallel
                assert isinstance(limit, int)
                if cell.status in ("waiting", "elsewhere"):
                    if stopper.asked:
                        cell.exit_code = EXIT_STOPPED
                    elif running < limit:
                        running += _try_to_start(cell)
                        stopper.pass_on()
            _collect(cells)
            table.refresh()
            time.sleep(POLL_SECONDS)
    failed = [cell for cell in cells if cell.status in ("failed", "diverged")]
    for cell in failed:
        why = f": {cell.reason.splitlines()[-1]}" if cell.reason else ""
        where = f"{cell.config.name}: {cell.status} (exit code {cell.exit_code}), see {cell.folder / LOG}"
        say(where + why)
    if any(cell.status == "stopped" for cell in cells):
        say("stopped; the same command goes on")
        if any(cell.config.run.fresh for cell in cells):
            say(WITHOUT_FRESH)
        return EXIT_STOPPED
    groups = sorted({cell.config.group for cell in cells if cell.config.run.dir is None})
    for group in groups:
        say(f"in {DEFAULT_OUTPUT / group}; its table: python scripts/report.py --group {group}")
    return 1 if failed else 0


def _try_to_start(cell: Cell) -> bool:
    """Start a run of a sweep, if a GPU is free and no other dispatcher is running it."""
    if cell.looked_at is not None and time.monotonic() - cell.looked_at < ELSEWHERE_SECONDS:
        return False
    leases = lease_gpus(cell.config)
    if leases is None:
        return False
    try:
        if claim(cell) and cell.exit_code is None:
            _start(cell, leases, cell.folder / LOG)
            return True
    except (ConfigError, RecordError, OSError) as error:  # of this run alone; the others go on
        cell.exit_code, cell.reason = 1 if isinstance(error, OSError) else 2, str(error)
        kill(cell)
        unlock(cell)
    for lease in leases:
        lease.release()
    return False


# -- children -------------------------------------------------------------------------------------------------------


def _start(cell: Cell, leases: list[Lease], log: Path | None) -> None:
    """Start the run's fresh child: one process a rank, the rendezvous in its environment (docs/decisions/002)."""
    launch = cell.config.launch
    assert isinstance(launch.num_processes, int) and isinstance(launch.max_parallel, int)
    environment = child_environment()
    environment.setdefault(
        "OMP_NUM_THREADS", str(max(num_cores() // (launch.num_processes * launch.max_parallel), 1))
    )
    if launch.device == "cpu":
        environment["ACCELERATE_USE_CPU"] = "true"
    if leases:
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(lease.gpu for lease in leases)
    if launch.num_processes > 1:
        environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port())}
        environment |= {
            "WORLD_SIZE": str(launch.num_processes),
            "LOCAL_WORLD_SIZE": str(launch.num_processes),
        }
    output: IO[bytes] | None = log.open("ab") if log else None
    cell.leases, cell.log = leases, log
    assert cell.lock is not None
    environment["ROPE_EXP_DISPATCHER"] = str(os.getpid())
    for failure in cell.folder.glob(f"{FAILURE}*"):
        failure.unlink()
    # Held back until a rank listens: one that was asked to stop earlier would have failed.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        for rank in range(launch.num_processes):
            own = {}
            if launch.num_processes > 1:
                failure = (cell.folder / f"{FAILURE}{rank}").absolute()
                own = {"RANK": str(rank), "LOCAL_RANK": str(rank), "ROPE_EXP_FAILURE": str(failure)}
            process = subprocess.Popen(
                [sys.executable, "-m", "rope_exp.training.worker", str(cell.folder)],
                env=environment | own,
                stdout=output,
                stderr=subprocess.STDOUT if output else None,
                pass_fds=[cell.lock, *(lease.descriptor for lease in leases)],
                start_new_session=True,  # a terminal's Ctrl-C reaches the dispatcher alone, which passes it on once
            )
            cell.ranks.append(process)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if output:
            output.close()


def _collect(cells: list[Cell]) -> None:
    """Note the runs that have ended; where one rank has failed or left, the others are ended after a while, too."""
    for cell in cells:
        if not cell.ranks or cell.exit_code is not None:
            continue
        now = time.monotonic()
        for number, rank in enumerate(cell.ranks):
            if number not in cell.ended and (code := rank.poll()) is not None:
                by_us = cell.were_killed and code == -signal.SIGKILL
                cell.ended[number] = Ended(EXIT_STOPPED if by_us else code, now)
        failures = {
            number: ended
            for number, ended in cell.ended.items()
            if ended.code not in (0, 3, EXIT_STOPPED)
        }
        if len(cell.ended) < len(cell.ranks):
            grace = GRACE_SECONDS if failures else STOP_SECONDS
            if cell.ended and now - min(ended.at for ended in cell.ended.values()) > grace:
                kill(cell)
            continue
        codes = {ended.code for ended in cell.ended.values()}
        if failures:
            # Its own word counts where it is a contract's: 2.
            cell.exit_code = 2 if 2 in codes else 1
            cell.reason = _first_failure(cell, failures)
            if cell.log and not cell.reason and free_bytes(cell.folder) < cell.needed_bytes:
                cell.reason = str(disk_full(cell.folder, cell.needed_bytes, "its checkpoint"))
            if cell.log and cell.reason:
                with (
                    contextlib.suppress(OSError),
                    cell.log.open("a", encoding="utf-8") as file,
                ):  # on that very disk
                    print(f"error: {cell.reason}", file=file)
        else:
            cell.exit_code = max(codes)
        unlock(cell)
        for lease in cell.leases:
            lease.release()


def kill(cell: Cell) -> None:
    """End the ranks that have not ended; the run's last checkpoint stands."""
    cell.were_killed = True
    for rank in cell.ranks:
        rank.kill()


def _first_failure(cell: Cell, failures: dict[int, Ended]) -> str:
    """What the rank that failed first has to say; "" where it has said it itself. The others failed because it did."""
    files = {number: cell.folder / f"{FAILURE}{number}" for number in failures}
    wall = time.time() - time.monotonic()
    when = {
        number: file.stat().st_mtime
        if (file := files[number]).exists()
        else ended.at + wall - POLL_SECONDS
        for number, ended in failures.items()
    }
    killed = [
        number for number, ended in failures.items() if ended.code == -signal.SIGKILL
    ]  # never another rank's doing
    first = killed[0] if killed else min(failures, key=lambda number: when[number])
    said = files[first].read_text(encoding="utf-8") if files[first].exists() else ""
    for file in files.values():
        file.unlink(missing_ok=True)
    who = f"process {first} of {len(cell.ranks)}" if len(cell.ranks) > 1 else "its process"
    if failures[first].code < 0:
        hint = " (the kernel does that where memory runs out)" if killed else ""
        return f"{who} was ended by {signal.Signals(-failures[first].code).name}{hint}"
    return f"{who} failed\n{said.rstrip()}" if said else ""


class _Stopper:
    """Passes SIGTERM, SIGINT and SIGUSR1 on to the ranks as SIGTERM; a second one ends them at once."""

    def __init__(self, cells: list[Cell]) -> None:
        self.asked, self._asked_at, self._cells = False, 0.0, cells

    def __enter__(self) -> "_Stopper":
        self._previous = {number: signal.signal(number, self._handle) for number in STOP_SIGNALS}
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if (
            error is not None
        ):  # a handler that is not ours raised: submitit's does, ahead of the job's limit
            self.asked = True
            self.pass_on()
            deadline = time.monotonic() + STOP_SECONDS
            while any(rank.poll() is None for cell in self._cells for rank in cell.ranks):
                if time.monotonic() > deadline:
                    break
                time.sleep(POLL_SECONDS)
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: object) -> None:
        now = time.monotonic()
        if self.asked and now - self._asked_at < REPEAT_SECONDS:
            return
        if self.asked:  # a rank inside a long operation does not hear its second signal: the last checkpoint stands
            for cell in self._cells:
                kill(cell)
            return
        self.asked, self._asked_at = True, now
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
