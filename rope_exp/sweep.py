"""The runs of a command: checks before they start, folders, processes, and the dispatcher."""

import functools
import itertools
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from rope_exp import gpu_leases
from rope_exp.compose import check_memory, finalise
from rope_exp.config import DEFAULT_OUTPUT, FACTORS, RunConfig, differing_keys
from rope_exp.corpus import Prepared
from rope_exp.errors import (
    EXIT_CODES,
    EXIT_DONE,
    EXIT_FAILED,
    EXIT_NO_PORT,
    EXIT_STOPPED,
    EXIT_USAGE,
    ConfigError,
    RunFolderError,
    keep_log,
    log,
)
from rope_exp.files import (
    DiskError,
    free_bytes,
    make_folders,
    read_json,
    refuse_full_disk,
    try_lock,
)
from rope_exp.folder import (
    CONFIG,
    LOCK,
    LOG,
    METRICS,
    RESULT,
    describe,
    last_step,
    list_steps,
    read_config,
    read_result,
    write_config,
)
from rope_exp.machine import DISPATCHER_ID, child_environment, num_cores
from rope_exp.prepare import open_data
from rope_exp.progress import SweepProgress
from rope_exp.signals import PASSED_ON, StopSignal, stop_signals_blocked
from rope_exp.trackers._base import tracker_class

POLL_SECONDS = 0.1
# Between two attempts to start waiting runs, whose GPU or folder another dispatcher may release.
WAIT_SECONDS = 1.0
LOCK_SECONDS = 5.0  # long enough for a process that was just killed to be gone
GRACE_SECONDS = 5.0  # between a rank's failure and the end of the ranks that wait for it
STOP_SECONDS = 60.0  # the same if the rank was stopped: the first rank saves meanwhile
PORT_ATTEMPTS = 5  # of a run whose port another process takes before its first rank
LOG_BYTES = 1 << 16  # below this, a log may lack its last words


@dataclass
class Job:
    """One run of a command: waiting until it has `ranks`, and ended once it has an `exit_code`."""

    config: RunConfig
    title: str = ""  # shown to users; empty: its variant and seed
    log: Path | None = None  # of its ranks' output; None: the terminal
    corpus: Path | None = None  # the folder of its prepared corpus; None: its data are generated
    lock: int = -1  # the descriptor that holds the folder's lock; -1: there is none
    # The descriptors of lock files that hold each of its GPUs.
    leases: dict[str, list[int]] = field(default_factory=dict)
    ranks: list[subprocess.Popen[bytes]] = field(default_factory=list)
    num_ports: int = 0  # those that its starts have chosen
    ended_at: float = 0.0  # the first rank, by the monotonic clock; 0: none yet
    was_stopped: bool = False
    was_killed: bool = False  # the ranks that were still running, by us
    exit_code: int | None = None
    reason: str = ""  # of a failure, if the output of its ranks is not enough

    @property
    def folder(self) -> Path:
        """The run's folder."""
        return self.config.folder

    @property
    def name(self) -> str:
        """The name shown to users."""
        return self.title or self.config.name

    @property
    def status(self) -> str:
        """One of waiting, running, finished, diverged, stopped and failed."""
        if self.exit_code is None:
            return "running" if self.ranks else "waiting"
        statuses = {code: status for status, code in EXIT_CODES.items()}
        return statuses.get(self.exit_code, "failed")

    def fail(self, error: Exception) -> None:
        """Mark the run as failed, by an error outside its ranks."""
        self.exit_code = EXIT_FAILED if isinstance(error, OSError) else EXIT_USAGE
        self.reason = str(error)

    def unlock(self) -> None:
        """Release the folder's lock; a child that inherited it keeps it while it lives."""
        if self.lock >= 0:
            os.close(self.lock)
            self.lock = -1

    def lease_gpus(self) -> bool:
        """Lease as many GPUs as the run has ranks, or none; return whether it did."""
        if self.config.launch.device != "cuda":
            return True
        if not self.leases:
            launch = self.config.launch
            self.leases = gpu_leases.lease(int(launch.num_processes), launch.runs_per_gpu)
        return bool(self.leases)

    def release_gpus(self) -> None:
        """Release every GPU; a child that inherited a lease keeps it while it lives."""
        gpu_leases.release(self.leases)

    def start(self) -> None:
        """Start one process per rank, which inherit the run's lock and leases."""
        num_ranks = int(self.config.launch.num_processes)
        environment = self._environment()
        if num_ranks > 1:
            self.num_ports += 1
            environment["WORLD_SIZE"] = str(num_ranks)
            environment["LOCAL_WORLD_SIZE"] = str(num_ranks)
            environment["MASTER_ADDR"] = "127.0.0.1"
            environment["MASTER_PORT"] = str(free_port())
        argv = [sys.executable, "-m", "rope_exp.worker", str(self.folder)]
        if self.corpus is not None:
            argv.append(str(self.corpus))

        # Without a log, both streams of a rank are this process's.
        stdout: BinaryIO | None = None
        stderr: int | None = None
        # A stop signal before a rank has installed its handlers would make it fail.
        with ExitStack() as stack:
            stack.enter_context(stop_signals_blocked())
            if self.log is not None:
                stdout = stack.enter_context(self.log.open("ab"))
                stderr = subprocess.STDOUT
            for rank in range(num_ranks):
                if num_ranks > 1:
                    environment["RANK"] = str(rank)
                    environment["LOCAL_RANK"] = str(rank)
                process = subprocess.Popen(
                    argv,
                    env=environment,
                    stdout=stdout,
                    stderr=stderr,
                    pass_fds=[self.lock, *itertools.chain(*self.leases.values())],
                    # A terminal's Ctrl-C reaches only the dispatcher, which passes it on once.
                    start_new_session=True,
                )
                self.ranks.append(process)

    def _environment(self) -> dict[str, str]:
        """Return the environment variables of every rank: threads, devices, the tracker's name."""
        launch = self.config.launch
        num_ranks = int(launch.num_processes)
        environment = child_environment(**{DISPATCHER_ID: str(os.getpid())})
        # The run's name at a tracker.
        environment.setdefault("WANDB_NAME", self.name[:128])
        num_threads = num_cores() // (num_ranks * int(launch.max_parallel))
        if not environment.get("OMP_NUM_THREADS", "").strip():
            environment["OMP_NUM_THREADS"] = str(max(num_threads, 1))
        # By default, threads that wait for a parallel region spin for long. Beside other work they
        # take the cores from the threads that they wait for (docs/performance.md).
        if "OMP_WAIT_POLICY" not in environment:
            environment.setdefault("GOMP_SPINCOUNT", "50000")
        if launch.device == "cpu":
            environment["ACCELERATE_USE_CPU"] = "true"
        if self.leases:
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(self.leases)
        return environment

    def poll(self) -> None:
        """Set the exit code once all ranks have ended, or kill the rest after a grace period.

        A rank reports the reason of its failure itself, unless a signal ended it.
        """
        codes = [process.poll() for process in self.ranks]
        ended = [code for code in codes if code is not None]
        if not ended:
            return
        if not self.ended_at:
            self.ended_at = time.monotonic()

        # Popen's code of a process that a signal ended is the signal's number, negated.
        lowest = min(ended)
        if lowest < 0 and not self.was_killed and not self.reason:
            process = f"process {codes.index(lowest)} of {len(codes)}"
            self.reason = f"{process} was ended by {_signal_name(-lowest)}"
            if lowest == -signal.SIGKILL:
                self.reason += " (the kernel does that where memory runs out)"
        # A rank that we have killed has not failed.
        no_failure = {*EXIT_CODES.values(), -signal.SIGKILL}
        has_failed = bool(self.reason) or any(code not in no_failure for code in ended)

        if len(ended) < len(codes):
            grace = GRACE_SECONDS if has_failed else STOP_SECONDS
            if time.monotonic() - self.ended_at > grace:
                self.kill()
        elif EXIT_NO_PORT in ended and self.num_ports < PORT_ATTEMPTS:
            # It waits again, with its lock and leases, and begins with another port.
            self.ranks = []
            self.ended_at = 0.0
            self.was_killed = False
            self.reason = ""
        elif EXIT_NO_PORT in ended:
            self.exit_code = EXIT_FAILED
            self.reason = f"other processes took each of {PORT_ATTEMPTS} ports that were free"
        elif has_failed:
            # If a rank refuses the config, the run does.
            self.exit_code = EXIT_USAGE if EXIT_USAGE in ended else EXIT_FAILED
        else:
            self.exit_code = EXIT_STOPPED if self.was_killed else max(ended)

    def stop(self) -> None:
        """Ask every rank to save and exit, once."""
        if not self.was_stopped:
            self.was_stopped = True
            for process in self.ranks:
                process.send_signal(PASSED_ON)

    def kill(self) -> None:
        """Kill the ranks that are still running; the run's last checkpoint remains."""
        self.was_killed = True
        for process in self.ranks:
            process.kill()


def free_port() -> int:
    """Return a port of this machine that no process has now."""
    with socket.create_server(("localhost", 0)) as probe:
        port: int = probe.getsockname()[1]
    return port


def _signal_name(number: int) -> str:
    """Return a signal as text; Python has no names for most real-time signals."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


# -- checks ----------------------------------------------------------------------------------------


def admit(configs: Sequence[RunConfig], titles: Sequence[str] = ()) -> list[Job]:
    """Check the runs of a command, whose configs are resolved; prepare data, and make folders."""
    jobs = list(map(Job, configs, titles or [""] * len(configs)))
    for job in jobs:
        cells = job.config.launch.cells_per_job
        if cells > 1:
            reason = "is for the jobs of `rope-exp campaign` and `rope-exp sweep` on a cluster"
            raise ConfigError("launch.cells_per_job", cells, reason)
    check_folders(jobs)

    # One run represents all runs of a group that may share a table.
    representatives = {}
    for config in configs:
        if config.run.dir is None:
            representatives[config.group_sha256, config.group] = config
    for config in representatives.values():
        _check_group(config)

    left = [job for job in jobs if job.exit_code is None]
    if len(left) > 1:
        # `finalise` has checked each run alone.
        check_memory([job.config for job in left])
    for section in {job.config.tracker for job in left}:
        tracker = tracker_class(section.name)
        if tracker is not None:
            tracker.check(section)
    _prepare_corpora(left)
    for job in left:
        try:
            with refuse_full_disk(job.folder, None, "a run's folder"):
                make_folders(job.folder)
        except DiskError:
            raise
        except OSError as error:
            raise _folder_error(job, f"cannot be made: {error.strerror}") from None
    return jobs


def _prepare_corpora(jobs: Sequence[Job]) -> None:
    """Prepare and verify each corpus once, and hand its folder to the runs that read it."""
    open_once = functools.cache(open_data)
    for job in jobs:
        train = job.config.train
        data = open_once(job.config.data, job.config.tokenizer, seq_len=train.seq_len)
        if isinstance(data, Prepared):
            job.corpus = data.folder
        # Generated data have no end.
        if data.num_train_tokens is not None and data.num_train_tokens <= train.longest:
            reason = f"a window needs {train.longest + 1} tokens and the corpus has "
            reason += f"{data.num_train_tokens} for train"
            raise ConfigError("train.stages", train.stages, reason)


def check_folders(jobs: Sequence[Job]) -> None:
    """Refuse folders of other runs or of two of these; set the exit codes of runs that are done."""
    check_places([job.config for job in jobs])
    for job in jobs:
        _check_folder(job)


def check_places(configs: Sequence[RunConfig]) -> None:
    """Refuse a sweep of which two runs would have one folder, and say what sets them apart."""
    by_folder: dict[Path, RunConfig] = {}
    for config in configs:
        other = by_folder.setdefault(config.folder.absolute(), config)
        if other is config:
            continue
        if other.config_sha256 == config.config_sha256:
            remedy = "they are one and the same: name each value once"
        elif config.run.dir is not None:
            remedy = (
                "leave run.dir out, or name in it what is swept: 'run.dir=DIR/${pe.name}-${seed}'"
            )
        elif config.run.group is not None:
            remedy = (
                "leave run.group out, or name in it what is swept: 'run.group=NAME-${optim.lr}'"
            )
        else:
            remedy = "give each variant a pe.name of its own"
        reason = f"two runs of the sweep ({config.name}) would share it; {remedy}"
        raise ConfigError("run.dir", str(config.folder), reason)


def _check_folder(job: Job) -> None:
    """Refuse a folder of another config; set the job's exit code if the run is done."""
    folder = job.folder
    if not folder.exists():
        return
    if not folder.is_dir():
        raise _folder_error(job, "is a file, and a run needs a folder; choose another place")
    # List once: another command may begin the run between two listings.
    names = {path.name for path in folder.iterdir()}
    if CONFIG not in names:
        # A start that was killed leaves these.
        if not names <= {LOCK, f".{CONFIG}.new"}:
            raise _folder_error(job, "holds files that are no run; choose another folder")
        return

    before = read_config(folder)
    keys = ("precision", "compile", "deterministic")
    # A node of a cluster resolves these later.
    later = [f"train.{key}" for key in keys if getattr(job.config.train, key) == "auto"]
    changes = differing_keys(before.affecting_values, job.config.affecting_values, later)
    if changes:
        reason = f"belongs to another config ({'; '.join(changes)}); choose another run.dir or "
        raise _folder_error(job, f"{reason}run.group, or move the folder away")

    result = read_result(folder)
    if result is not None:
        job.exit_code = EXIT_CODES[result["status"]]
        return
    step = last_step(folder)
    if step > before.train.save_every and not list_steps(folder / "checkpoints"):
        reason = f"has metrics up to step {step} and no checkpoint; restore its checkpoints/"
        raise _folder_error(job, f"{reason}, or move the folder away to begin anew")


def _check_group(config: RunConfig) -> None:
    """Refuse a run that cannot share a table with the others of its group."""
    # These can share one, so the first represents them.
    for path in sorted((DEFAULT_OUTPUT / config.group).glob(f"*/seed*/{CONFIG}"))[:1]:
        other = read_config(path.parent)
        if other.group_sha256 != config.group_sha256:
            changes = "; ".join(
                differing_keys(other.affecting_values, config.affecting_values, FACTORS)
            )
            reason = f"holds runs of another config ({changes}); choose another name, or null"
            raise ConfigError("run.group", config.group, reason)


# -- acquisition -----------------------------------------------------------------------------------


def acquire(job: Job) -> bool:
    """Lock the run's folder and write its config; return False if another process has the lock."""
    make_folders(job.folder)
    lock = try_lock(job.folder / LOCK)
    if lock is None:
        return False
    job.lock = lock

    # Another command may have begun or finished runs since this one was admitted.
    _check_folder(job)
    if job.exit_code is not None:
        return True
    if job.config.run.dir is None:
        _check_group(job.config)

    # Without a checkpoint the run begins anew, and drops metrics from before the first save.
    if not list_steps(job.folder / "checkpoints"):
        lost = last_step(job.folder)
        if lost:
            log(f"{job.name}: begins anew, since step {lost} came before any checkpoint")
        (job.folder / METRICS).unlink(missing_ok=True)

    place = {"dir": str(job.folder), "group": job.config.group}
    write_config(job.folder, job.config.replace("run", **place))
    return True


def acquire_or_refuse(job: Job) -> None:
    """Acquire the folder of the only run of a command; refuse one that another process runs."""
    deadline = time.monotonic() + LOCK_SECONDS
    while job.exit_code is None and not acquire(job):
        if time.monotonic() > deadline:
            raise _folder_error(job, "another process is running this run; wait for it")
        time.sleep(POLL_SECONDS)
    if job.exit_code is not None:
        done = f"{job.folder} is done: {describe(read_json(job.folder / RESULT))}"
        again = "move the folder away to begin anew; a run of another run.dir trains its weights"
        print(f"{done}; {again} further with run.init_from={job.folder}")


def _folder_error(job: Job, reason: str) -> ConfigError:
    return ConfigError("run.dir", str(job.folder), reason)


# -- the dispatcher --------------------------------------------------------------------------------


def dispatch(configs: Sequence[RunConfig], titles: Sequence[str]) -> tuple[int, list[Job]]:
    """Resolve, admit and complete every run; return the exit code, of a sweep 0, 1 or 75."""
    jobs = admit([finalise(config) for config in configs], titles)
    if len(jobs) > 1:
        return run_all(jobs), jobs

    # The ranks of the only run of a command write to the terminal.
    [job] = jobs
    acquire_or_refuse(job)
    if job.exit_code is None and not job.lease_gpus():
        log(f"{job.name}: every GPU is leased to another run; waiting for one")
    run_until_done(jobs)
    if job.reason:
        keep_log(job.folder / LOG)
        log(f"error: {job.name}: {job.reason}")
    if job.exit_code is None:
        return EXIT_STOPPED, jobs
    return job.exit_code, jobs


def drop_tracker_id() -> None:
    """Drop the id of one run that `wandb agent` sets: each run of a sweep has its own."""
    os.environ.pop("WANDB_RUN_ID", None)


def run_all(
    jobs: Sequence[Job], on_end: Callable[[Sequence[Job]], None] = lambda ended: None
) -> int:
    """Bring a sweep to its end and return its exit code; ranks write to a log in each folder."""
    drop_tracker_id()
    for job in jobs:
        job.log = job.folder / LOG
    run_until_done(jobs, [on_end, SweepProgress(jobs).show])

    failed = [job for job in jobs if job.status in ("failed", "diverged")]
    for job in failed:
        why = f": {job.reason.splitlines()[-1]}" if job.reason else ""
        log(f"{job.name}: {job.status} (exit code {job.exit_code}), see {job.log}{why}")

    if any(job.exit_code in (None, EXIT_STOPPED) for job in jobs):
        log("stopped; the same command resumes")
        return EXIT_STOPPED

    for group in sorted({job.config.group for job in jobs if job.config.run.dir is None}):
        log(f"in {DEFAULT_OUTPUT / group}; its table: rope-exp report --group {group}")
    return EXIT_FAILED if failed else EXIT_DONE


def run_until_done(
    jobs: Sequence[Job], on_poll: Sequence[Callable[[Sequence[Job]], None]] = ()
) -> None:
    """Start runs in their order, and poll them until all have ended or a stop is requested.

    Args:
        jobs: admitted; their exit codes are set here.
        on_poll: called after every poll, with the runs that have ended since the last one.
    """
    signals = StopSignal(is_rank=False)
    try:
        _poll_all(jobs, on_poll, signals)
    except BaseException:
        # Another package's handler raised: submitit's does, ahead of its job's time limit.
        deadline = time.monotonic() + STOP_SECONDS
        for job in jobs:
            job.stop()
        processes = [process for job in jobs for process in job.ranks]
        while None in [process.poll() for process in processes] and time.monotonic() < deadline:
            if signals.repeated:
                for job in jobs:
                    job.kill()
            time.sleep(POLL_SECONDS)
        raise
    finally:
        signals.restore()


def _poll_all(
    jobs: Sequence[Job], on_poll: Sequence[Callable[[Sequence[Job]], None]], signals: StopSignal
) -> None:
    try_again_at = 0.0
    while True:
        left = [job for job in jobs if job.exit_code is None]
        if not left:
            return
        now = time.monotonic()
        running = [job for job in left if job.ranks]
        for job in running:
            if signals.repeated:
                # Inside a long operation, a rank does not notice a second signal.
                job.kill()
            elif signals.requested:
                job.stop()
            job.poll()
            if job.exit_code is not None:
                try_again_at = now
                _release(job)

        if signals.requested and not running:
            return
        if now >= try_again_at and not signals.requested:
            try_again_at = now + WAIT_SECONDS
            _start_waiting(left)
        ended = [job for job in left if job.exit_code is not None]
        for call in on_poll:
            call(ended)
        time.sleep(POLL_SECONDS)


def _release(job: Job) -> None:
    """Complete the log of a run that has ended, and release its folder and GPUs."""
    if job.log and job.ranks and job.status == "failed":
        # The log may lie on a full disk, where ranks cannot write their own reason.
        if not job.reason and free_bytes(job.folder) < LOG_BYTES:
            job.reason = str(DiskError(job.folder, LOG_BYTES, "its log"))
        elif job.reason:
            with suppress(OSError), job.log.open("a", encoding="utf-8") as file:
                file.write(f"error: {job.reason}\n")
    job.unlock()
    job.release_gpus()


def _start_waiting(jobs: Sequence[Job]) -> None:
    """Start waiting runs while GPUs are free and every run's max_parallel allows it."""
    running = [job for job in jobs if job.status == "running"]
    for job in jobs:
        limit = min(int(other.config.launch.max_parallel) for other in [job, *running])
        if job.status != "waiting" or len(running) >= limit:
            continue
        try:
            if not job.lease_gpus():
                continue
            if (job.lock >= 0 or acquire(job)) and job.exit_code is None:
                job.start()
        except (ConfigError, RunFolderError, OSError) as error:
            # Only this run fails; the others continue.
            job.fail(error)
            job.kill()

        if job.status == "running":
            running.append(job)
        else:
            _release(job)
