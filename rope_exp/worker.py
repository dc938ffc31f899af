"""One rank of one run: set up the process, open the data, train, and end.

The dispatcher starts it as `python -m rope_exp.worker RUN_FOLDER [CORPUS_FOLDER]`, with the folder
of the corpus that it has prepared; generated data have none. The command line calls it directly if
its process is already a rank of `accelerate launch` or torchrun.
"""

import ctypes
import gc
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rope_exp.config import RunConfig
from rope_exp.corpus import DataSet, open_prepared
from rope_exp.errors import (
    EXIT_CODES,
    EXIT_FAILED,
    EXIT_NO_PORT,
    EXIT_STOPPED,
    EXIT_USAGE,
    DataError,
    PortError,
    keep_log,
    log,
    run_command,
)
from rope_exp.files import read_json, write_atomically, write_json
from rope_exp.folder import ENV, LOG, RESULT, describe, list_steps, read_config, read_env
from rope_exp.machine import DISPATCHER_ID, MARKED, environment_text, machine_environment
from rope_exp.signals import StopSignal, on_signal


def main() -> int:
    """Train the run in a folder, on a corpus in another; return the exit code."""
    # Before anything slow, so that a signal during imports is caught.
    stop = StopSignal()
    if DISPATCHER_ID not in os.environ or len(sys.argv) < 2:
        # By hand, nobody would hold the run's lock.
        log("error: rope_exp.worker is a process of `rope-exp train`, which starts it")
        return EXIT_USAGE
    if sys.platform == "linux":
        # Let this process die with its dispatcher: none survives that holds a run's lock.
        set_parent_death_signal = 1  # PR_SET_PDEATHSIG of <linux/prctl.h>
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)
        # The dispatcher died before the call.
        if os.getppid() != int(os.environ[DISPATCHER_ID]):
            return EXIT_STOPPED
    folder = Path(sys.argv[1])
    corpus = Path(sys.argv[2]) if len(sys.argv) > 2 else None
    return run_rank(lambda: read_config(folder), corpus, stop)


def run_rank(read: Callable[[], RunConfig], corpus: Path | None, stop: StopSignal) -> int:
    """Train one run, whose lock the caller holds, as this rank of it.

    If one of several ranks fails, its process exits at once: Python's shutdown would be aborted by
    torch's threads, which wait for ranks that are gone.

    Args:
        read: returns the run's config.
        corpus: the folder of its prepared corpus; None: its data are generated.
        stop: catches requests to stop.

    Returns:
        The exit code.
    """
    try:
        code = run_command(lambda: run(read(), corpus, stop), prints=False)
    except Exception:
        # Another launcher's process may be under a debugger.
        if DISPATCHER_ID not in os.environ:
            raise
        log(traceback.format_exc().rstrip())
        code = EXIT_FAILED
    # A dispatcher may pass on a signal while Python, shutting down, has removed our handlers.
    on_signal(signal.SIG_IGN)
    if code in (EXIT_FAILED, EXIT_USAGE, EXIT_NO_PORT) and os.environ.get("WORLD_SIZE", "1") != "1":
        os._exit(code)
    return code


def run(config: RunConfig, corpus: Path | None, stop: StopSignal) -> int:
    """Train a run as this rank of it: `run_rank` once its config is read.

    Args:
        config: of the run.
        corpus: as of `run_rank`.
        stop: as of `run_rank`.
    Returns:
        The exit code. Errors are raised.
    """
    # Several ranks stop together, in the loop.
    if stop.requested and config.launch.num_processes == 1:
        return EXIT_STOPPED
    folder = config.folder
    if os.environ.get("RANK", "0") == "0":
        keep_log(folder / LOG)

    # Imported objects stay alive. Letting Python's collector search them for garbage costs a
    # second at the start, and a step or two in training.
    gc.disable()
    set_up_process(config)

    from rope_exp.custom_code import refuse_code_errors
    from rope_exp.laws import measured_once
    from rope_exp.parallel import Parallel
    from rope_exp.trainer import Trainer

    gc.freeze()
    gc.enable()

    laws = measured_once(config.model, config.pe, config.attn, causal=config.causal)
    launch = config.launch
    try:
        parallel = Parallel(launch.device, config.train.precision, launch.num_processes)
    except PortError:
        if DISPATCHER_ID not in os.environ:
            raise
        return EXIT_NO_PORT
    data = open_rank_data(config, corpus, parallel)
    trainer = Trainer(config, folder, data, parallel, stop)
    if parallel.is_main:
        record_start(trainer, laws)

    gc.collect()
    gc.freeze()
    if config.pe.code is None:
        status = trainer.train()
    else:
        with refuse_code_errors(config.pe.code, every=False):
            status = trainer.train()

    del trainer
    if parallel.group is not None:
        parallel.group.end(parallel.accelerator)
    if parallel.is_main:
        log(f"{config.name}: {describe_end(folder, status)}")
    return EXIT_CODES[status]


def open_rank_data(config: RunConfig, corpus: Path | None, parallel: Any) -> DataSet:
    """Open the data of a run on a rank: rows that are generated, or a corpus that was prepared.

    The first rank hashes all tokens, as does the first on each machine, which may have a disk of
    its own. The others wait, longer than torch lets them wait in a collective call of training.

    Args:
        config: of the run.
        corpus: the folder of its prepared corpus; None: its data are generated.
        parallel: the ranks of the run.
    Returns:
        The data set.
    Raises:
        DataError: the corpus is gone, or damaged; or text has none, because a dispatcher of an
            older version names none.
    """
    if corpus is None:
        if config.task is None:
            reason = "this process was given no prepared corpus: rope_exp was updated after the "
            raise DataError(f"{reason}command had started; the same command begins or resumes it")
        # Imported late, as is all that takes time.
        from rope_exp.tasks._rows import open_task

        return open_task(config.data, config.train.seq_len)
    is_first = parallel.is_main or parallel.accelerator.is_local_main_process
    data = open_prepared(corpus, config.data, verifies=is_first)
    parallel.wait()
    return data


def describe_end(folder: Path, status: str) -> str:
    """Return how a run has ended, or where a stopped run resumes, as text after its name."""
    if status != "stopped":
        return f"{describe(read_json(folder / RESULT))}, in {folder}"
    steps = list_steps(folder / "checkpoints")
    if not steps:
        return "stopped before its first step; the same command begins it again"
    where = f"its checkpoint of step {steps[-1]} is in {folder}"
    return f"stopped; {where}, and the same command resumes it"


def record_start(trainer: Any, laws: Mapping[str, Any]) -> None:
    """Write env.json and tokenizer.json of a run that begins or resumes, and log that it does.

    Changes since the run's previous start are in `marks` and `earlier_git`. A run without a
    checkpoint begins anew; only the times of its earlier starts are kept.
    """
    config = trainer.config
    train = config.train
    parallel = trainer.parallel
    accelerator = parallel.accelerator
    old = read_env(trainer.folder)
    here = {"world_size": parallel.world_size, **machine_environment(parallel.device.type)}
    resumed = old if trainer.step else {}
    marks = []
    for key in MARKED:
        if key in resumed and resumed[key] != here[key]:
            now = environment_text(here[key])
            marks.append(f"went on with {key} {now} after {environment_text(resumed[key])}")
    earlier_git = [*resumed.get("earlier_git", [])]
    if "git" in resumed and resumed["git"] != here["git"]:
        earlier_git.append(resumed["git"])
    env = {
        **here,
        "marks": [*resumed.get("marks", []), *marks],
        "earlier_git": earlier_git,
        "started": [*old.get("started", []), time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())],
        "deterministic": train.deterministic,
        "accelerate": {
            "distributed_type": accelerator.distributed_type.name,
            "mixed_precision": accelerator.mixed_precision,
            "device": str(parallel.device),
            "num_processes": parallel.world_size,
        },
        "params": trainer.num_parameters,
        "certificate": laws,
        "corpus": trainer.data.corpus,
    }
    if config.init_weights is not None:
        from rope_exp.init_from import origin_metadata

        env["init_from"] = resumed.get("init_from") or origin_metadata(config)
    write_json(trainer.folder / ENV, env)
    write_atomically(trainer.folder / "tokenizer.json", trainer.data.tokenizer_json)

    lines = [
        f"{config.pe.label} {config.model.name}, {trainer.num_parameters:,} parameters, on "
        f"{config.data.name}, {train.num_steps:,} steps, on {config.launch.device}, "
        f"{train.precision}, {'' if train.compile else 'not '}compiled, in {trainer.folder}",
        *marks,
    ]
    if trainer.step:
        lines.append(f"resumes from step {trainer.step}")
    if train.compile:
        lines.append("compiling, which takes the first step 10 s to a minute")
    for line in lines:
        log(f"{config.name}: {line}")


def set_up_process(config: RunConfig) -> None:
    """Set determinism, compilation and memory options for the whole process."""
    import torch

    # torch compiles a function at most 8 times; here, for each sequence length.
    torch._dynamo.config.recompile_limit = 8 * len(config.train.staged)
    # One compiled block serves every layer; DDP's splitting of graphs by bucket would undo that.
    torch._dynamo.config.optimize_ddp = False

    if config.train.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
        # Filling costs time and changes no number: nothing reads memory before it is written.
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    if config.launch.num_threads != "auto":
        torch.set_num_threads(config.launch.num_threads)
    if config.launch.device == "cpu":
        from rope_exp.cpu_attention import keep_freed_memory

        keep_freed_memory()


if __name__ == "__main__":
    sys.exit(main())
