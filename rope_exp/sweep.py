"""The runs of a command: checks before they start, folders, processes, and the dispatcher."""

import functools
import itertools
import os
import signal
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
from rope_exp.machine import DISPATCHER_ID, child_environment, free_port, num_cores, set_waiting
from rope_exp.prepare import open_data
from rope_exp.progress import SweepProgress
from rope_exp.signals import PASSED_ON, StopSignal, signal_name, stop_signals_blocked
from rope_exp.trackers._base import tracker_class

POLL_SECONDS = 0.1
# Between two attempts to start waiting runs, whose GPU or folder another dispatcher may release.
WAIT_SECONDS = 1.0
LOCK_SECONDS = 5.0  # long enough for a process that was just killed to be gone
GRACE_SECONDS = 5.0  # between a rank's failure and the end of the ranks that wait for it
STOP_SECONDS = 60.0  # the same if the rank was stopped: the first rank saves meanwhile
PORT_ATTEMPTS = 5  # of a run whose port another process takes before its first rank
LOG_BYTES = 1 << 16  # with less free disk, a rank may not have written why it failed


@dataclass
class DispatchedRun:
    """A run as the dispatcher sees it.

    Attributes:
        config: of the run; resolved before it starts.
        title: the name shown to users; empty: they see its variant and seed.
        log: the file to which its ranks write; None: they write to the terminal.
        corpus: the folder of its prepared corpus; None: its data are generated.
        lock: the descriptor that holds the folder's lock; -1: the folder is not locked.
        leases: the descriptors of lock files that hold each of its GPUs, by UUID.
        ranks: its processes, in the order of ranks; empty: it is waiting to start.
        num_ports: how many ports were tried.
        first_ended_at: when its first rank ended, by the monotonic clock; 0: none has.
        was_stopped: we asked its ranks to save and exit.
        was_killed: we killed the ranks that were still running.
        exit_code: of the run, for the shell; None: it has not ended.
        reason: why it failed; empty: it did not, or its ranks have reported that themselves.
    """

    config: RunConfig
    title: str = ""
    log: Path | None = None
    corpus: Path | None = None
    lock: int = -1
    leases: dict[str, list[int]] = field(default_factory=dict)
    ranks: list[subprocess.Popen[bytes]] = field(default_factory=list)
    num_ports: int = 0
    first_ended_at: float = 0.0
    was_stopped: bool = False
    was_killed: bool = False
    exit_code: int | None = None
    reason: str = ""

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

    def start(self, *, is_alone: bool = True) -> None:
        """Start one process per rank, which inherit the run's lock and leases.

        `is_alone`: no other run of this command is running.
        """
        num_ranks = int(self.config.launch.num_processes)
        environment = self._environment(is_alone=is_alone)
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

    def _environment(self, *, is_alone: bool) -> dict[str, str]:
        """Return the environment variables of every rank: threads, devices, the tracker's name."""
        launch = self.config.launch
        num_ranks = int(launch.num_processes)
        environment = child_environment(**{DISPATCHER_ID: str(os.getpid())})
        # The run's name at a tracker.
        environment.setdefault("WANDB_NAME", self.name[:128])
        num_threads = num_cores() // (num_ranks * int(launch.max_parallel))
        if not environment.get("OMP_NUM_THREADS", "").strip():
            environment["OMP_NUM_THREADS"] = str(max(num_threads, 1))
        if launch.device == "cpu":
            environment["ACCELERATE_USE_CPU"] = "true"
            set_waiting(environment, launch.num_threads, looks=is_alone)
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
        if not self.first_ended_at:
            self.first_ended_at = time.monotonic()

        # Popen's code of a process that a signal ended is the signal's number, negated.
        lowest = min(ended)
        if lowest < 0 and not self.was_killed and not self.reason:
            process = f"process {codes.index(lowest)} of {len(codes)}"
            self.reason = f"{process} was ended by {signal_name(-lowest)}"
            if lowest == -signal.SIGKILL:
                self.reason += " (the kernel does that where memory runs out)"
        # A rank that we have killed has not failed.
        no_failure = {*EXIT_CODES.values(), -signal.SIGKILL}
        has_failed = bool(self.reason) or any(code not in no_failure for code in ended)

        if len(ended) < len(codes):
            grace = GRACE_SECONDS if has_failed else STOP_SECONDS
            if time.monotonic() - self.first_ended_at > grace:
                self.kill()
        elif EXIT_NO_PORT in ended and self.num_ports < PORT_ATTEMPTS:
            # It waits again, with its lock and leases, and begins with another port.
            self.ranks = []
            self.first_ended_at = 0.0
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


# Called after every poll, with the runs that have ended since the last one.
OnPoll = Callable[[Sequence[DispatchedRun]], None]


# -- checks ----------------------------------------------------------------------------------------


def admit(configs: Sequence[RunConfig], titles: Sequence[str] = ()) -> list[DispatchedRun]:
    """Check the runs of a command, whose configs are resolved; prepare data, and make folders."""
    runs = list(map(DispatchedRun, configs, titles or [""] * len(configs)))
    for run in runs:
        runs_per_job = run.config.launch.cells_per_job
        if runs_per_job > 1:
            reason = "is for the jobs of `rope-exp campaign` and `rope-exp sweep` on a cluster"
            raise ConfigError("launch.cells_per_job", runs_per_job, reason)
    check_folders(runs)

    # One run represents all runs of a group that may share a table.
    representatives = {}
    for config in configs:
        if config.run.dir is None:
            representatives[config.group_sha256, config.group] = config
    for config in representatives.values():
        _check_group(config)

    remaining = [run for run in runs if run.exit_code is None]
    if len(remaining) > 1:
        # `finalise` has checked each run alone.
        check_memory([run.config for run in remaining])
    for section in {run.config.tracker for run in remaining}:
        tracker = tracker_class(section.name)
        if tracker is not None:
            tracker.check(section)
    _prepare_corpora(remaining)
    for run in remaining:
        try:
            with refuse_full_disk(run.folder, None, "a run's folder"):
                make_folders(run.folder)
        except DiskError:
            raise
        except OSError as error:
            raise _folder_error(run, f"cannot be made: {error.strerror}") from None
    return runs


def _prepare_corpora(runs: Sequence[DispatchedRun]) -> None:
    """Prepare and verify each corpus once, and hand its folder to the runs that read it."""
    open_once = functools.cache(open_data)
    for run in runs:
        train = run.config.train
        data = open_once(run.config.data, run.config.tokenizer, seq_len=train.seq_len)
        if isinstance(data, Prepared):
            run.corpus = data.folder
        # Generated data have no end.
        if data.num_train_tokens is not None and data.num_train_tokens <= train.longest:
            reason = f"a window needs {train.longest + 1} tokens and the corpus has "
            reason += f"{data.num_train_tokens} for train"
            raise ConfigError("train.stages", train.stages, reason)


def check_folders(runs: Sequence[DispatchedRun]) -> None:
    """Refuse folders of other runs or of two of these; set the exit codes of runs that are done."""
    check_distinct_folders([run.config for run in runs])
    for run in runs:
        _check_folder(run)


def check_distinct_folders(configs: Sequence[RunConfig]) -> None:
    """Refuse a sweep of which two runs would have one folder, and say what sets them apart."""
    by_folder: dict[Path, RunConfig] = {}
    for config in configs:
        other = by_folder.setdefault(config.folder.absolute(), config)
        if other is config:
            continue
        if other.config_sha256 == config.config_sha256:
            remedy = "they are one and the same: name each value once"
        elif config.run.dir is not None:
            remedy = "leave run.dir out, or name in it what is swept: "
            remedy += "'run.dir=DIR/${pe.name}-${seed}'"
        elif config.run.group is not None:
            remedy = "give each variant a pe.name of its own, leave run.group out, or name in it "
            remedy += "what is swept: 'run.group=NAME-${optim.lr}'"
        else:
            remedy = "give each variant a pe.name of its own"
        reason = f"two runs of the sweep ({config.name}) would share it; {remedy}"
        raise ConfigError("run.dir", str(config.folder), reason)


def _check_folder(run: DispatchedRun) -> None:
    """Refuse a folder of another config; set the run's exit code if the run is done."""
    folder = run.folder
    if not folder.exists():
        return
    if not folder.is_dir():
        raise _folder_error(run, "is a file, and a run needs a folder; choose another place")
    # List once: another command may begin the run between two listings.
    names = {path.name for path in folder.iterdir()}
    if CONFIG not in names:
        # A start that was killed leaves these.
        if not names <= {LOCK, f".{CONFIG}.new"}:
            raise _folder_error(run, "holds files, but not those of a run; choose another folder")
        return

    before = read_config(folder)
    keys = ("precision", "compile", "deterministic")
    # A node of a cluster resolves these later.
    later = [f"train.{key}" for key in keys if getattr(run.config.train, key) == "auto"]
    changes = differing_keys(before.affecting_values, run.config.affecting_values, later)
    if changes:
        reason = f"belongs to another config ({'; '.join(changes)}); choose another run.dir or "
        raise _folder_error(run, f"{reason}run.group, or move the folder away")

    result = read_result(folder)
    if result is not None:
        run.exit_code = EXIT_CODES[result["status"]]
        return
    step = last_step(folder)
    if step > before.train.save_every and not list_steps(folder / "checkpoints"):
        reason = f"has metrics up to step {step} and no checkpoint; restore its checkpoints/"
        raise _folder_error(run, f"{reason}, or move the folder away to begin anew")


def _check_group(config: RunConfig) -> None:
    """Refuse a run that cannot share a table with the others of its group."""
    paths = sorted((DEFAULT_OUTPUT / config.group).glob(f"*/seed*/{CONFIG}"))
    if not paths:
        return
    # The runs in the folder can share a table, so the first represents them.
    other = read_config(paths[0].parent)
    if other.group_sha256 != config.group_sha256:
        changes = differing_keys(other.affecting_values, config.affecting_values, FACTORS)
        reason = f"holds runs of another config ({'; '.join(changes)})"
        raise ConfigError("run.group", config.group, f"{reason}; choose another name, or null")


# -- acquisition -----------------------------------------------------------------------------------


def acquire(run: DispatchedRun) -> bool:
    """Lock the run's folder and write its config, unless the run is done by now.

    Returns:
        False if another process has the lock. True otherwise, also for a run that is done: its
        `exit_code` is then set, and nothing is written.
    Raises:
        ConfigError, RunFolderError: the folder is another config's, or cannot be read.
    """
    make_folders(run.folder)
    lock = try_lock(run.folder / LOCK)
    if lock is None:
        return False
    run.lock = lock

    # Another command may have begun or finished runs since this one was admitted.
    _check_folder(run)
    if run.exit_code is not None:
        return True
    if run.config.run.dir is None:
        _check_group(run.config)

    # Without a checkpoint the run begins anew, and drops metrics from before the first save.
    if not list_steps(run.folder / "checkpoints"):
        lost = last_step(run.folder)
        if lost:
            log(f"{run.name}: begins anew, since step {lost} came before any checkpoint")
        (run.folder / METRICS).unlink(missing_ok=True)

    place = {"dir": str(run.folder), "group": run.config.group}
    write_config(run.folder, run.config.replace("run", **place))
    return True


def acquire_or_refuse(run: DispatchedRun) -> None:
    """Acquire the folder of the only run of a command; refuse one that another process runs."""
    deadline = time.monotonic() + LOCK_SECONDS
    while run.exit_code is None and not acquire(run):
        if time.monotonic() > deadline:
            raise _folder_error(run, "another process is running this run; wait for it")
        time.sleep(POLL_SECONDS)
    if run.exit_code is not None:
        done = f"{run.folder} is done: {describe(read_json(run.folder / RESULT))}"
        again = "to train again, move it away; to train these weights further, start a run of"
        print(f"{done}; {again} another run.dir with run.init_from={run.folder}")


def _folder_error(run: DispatchedRun, reason: str) -> ConfigError:
    return ConfigError("run.dir", str(run.folder), reason)


# -- the dispatcher --------------------------------------------------------------------------------


def dispatch(
    configs: Sequence[RunConfig], titles: Sequence[str]
) -> tuple[int, list[DispatchedRun]]:
    """Resolve, admit and complete every run of a command.

    Returns:
        The exit code, for a sweep 0, 1 or 75, and the runs with their own exit codes.
    """
    runs = admit([finalise(config) for config in configs], titles)
    if len(runs) > 1:
        return run_all(runs), runs

    # The ranks of the only run of a command write to the terminal.
    [run] = runs
    acquire_or_refuse(run)
    if run.exit_code is None:
        is_free = run.lease_gpus()
        waiting = "too few GPUs are free, as other runs have leased them; waiting"
        log(f"{run.name}: {'starting' if is_free else waiting}")
    run_until_done(runs)
    if run.reason:
        keep_log(run.folder / LOG)
        log(f"error: {run.name}: {run.reason}")
    if run.exit_code is None:
        return EXIT_STOPPED, runs
    return run.exit_code, runs


def drop_tracker_id() -> None:
    """Drop the id of one run that `wandb agent` sets: each run of a sweep has its own."""
    os.environ.pop("WANDB_RUN_ID", None)


def run_all(runs: Sequence[DispatchedRun], on_poll: OnPoll = lambda ended: None) -> int:
    """Bring a sweep to its end; the ranks of each run write to a log in its folder.

    Returns:
        The exit code: 0, 1 or 75.
    """
    drop_tracker_id()
    for run in runs:
        run.log = run.folder / LOG
    run_until_done(runs, [on_poll, SweepProgress(runs).show])

    failed = [run for run in runs if run.status in ("failed", "diverged")]
    for run in failed:
        why = f": {run.reason.splitlines()[-1]}" if run.reason else ""
        log(f"{run.name}: {run.status} (exit code {run.exit_code}), see {run.log}{why}")

    if any(run.exit_code in (None, EXIT_STOPPED) for run in runs):
        log("stopped; the same command resumes")
        return EXIT_STOPPED

    for group in sorted({run.config.group for run in runs if run.config.run.dir is None}):
        log(f"in {DEFAULT_OUTPUT / group}; its table: rope-exp report --group {group}")
    return EXIT_FAILED if failed else EXIT_DONE


def run_until_done(runs: Sequence[DispatchedRun], on_poll: Sequence[OnPoll] = ()) -> None:
    """Start runs in their order, and poll them until all have ended or a stop is requested.

    Args:
        runs: admitted; their exit codes are set here.
        on_poll: called after every poll, with the runs that have ended since the last one.
    """
    signals = StopSignal(is_rank=False)
    try:
        _poll_all(runs, on_poll, signals)
    except BaseException:
        # Another package's handler raised: submitit's does, ahead of its job's time limit.
        deadline = time.monotonic() + STOP_SECONDS
        for run in runs:
            run.stop()
        processes = [process for run in runs for process in run.ranks]
        while None in [process.poll() for process in processes] and time.monotonic() < deadline:
            if signals.repeated:
                for run in runs:
                    run.kill()
            time.sleep(POLL_SECONDS)
        raise
    finally:
        signals.restore()


def _poll_all(
    runs: Sequence[DispatchedRun], on_poll: Sequence[OnPoll], signals: StopSignal
) -> None:
    try_again_at = 0.0
    while True:
        remaining = [run for run in runs if run.exit_code is None]
        if not remaining:
            return
        now = time.monotonic()
        running = [run for run in remaining if run.ranks]
        for run in running:
            if signals.repeated:
                # Inside a long operation, a rank does not notice a second signal.
                run.kill()
            elif signals.requested:
                run.stop()
            run.poll()
            if run.exit_code is not None:
                try_again_at = now
                _release(run)

        if signals.requested and not running:
            return
        if now >= try_again_at and not signals.requested:
            try_again_at = now + WAIT_SECONDS
            _start_waiting(remaining)
        ended = [run for run in remaining if run.exit_code is not None]
        for call in on_poll:
            call(ended)
        time.sleep(POLL_SECONDS)


def _release(run: DispatchedRun) -> None:
    """Complete the log of a run that has ended, and release its folder and GPUs."""
    if run.log and run.ranks and run.status == "failed":
        # The log may lie on a full disk, where ranks cannot write their own reason.
        if not run.reason and free_bytes(run.folder) < LOG_BYTES:
            run.reason = str(DiskError(run.folder, LOG_BYTES, "its log"))
        elif run.reason:
            with suppress(OSError), run.log.open("a", encoding="utf-8") as file:
                file.write(f"error: {run.reason}\n")
    run.unlock()
    run.release_gpus()


def _start_waiting(runs: Sequence[DispatchedRun]) -> None:
    """Start waiting runs while GPUs are free and every run's max_parallel allows it."""
    running = [run for run in runs if run.status == "running"]
    for run in runs:
        limit = min(int(other.config.launch.max_parallel) for other in [run, *running])
        if run.status != "waiting" or len(running) >= limit:
            continue
        try:
            if not run.lease_gpus():
                continue
            if (run.lock >= 0 or acquire(run)) and run.exit_code is None:
                run.start(is_alone=not running)
        except (ConfigError, RunFolderError, OSError) as error:
            # Only this run fails; the others continue.
            run.fail(error)
            run.kill()

        if run.status == "running":
            running.append(run)
        else:
            _release(run)
