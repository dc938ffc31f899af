"""One rank of one run: set up the process, prepare the data, train, and end.

The launcher starts it as `python -m rope_exp.training.worker RUN_FOLDER`. The command line calls it
directly if its process is already a rank of `accelerate launch` or torchrun.
"""

import ctypes
import gc
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

from rope_exp.config.run import RunConfig
from rope_exp.run.folder import ENV, LOG, RESULT, describe, read_config, read_env
from rope_exp.system.console import ignoring_output_errors, keep, keep_log, log
from rope_exp.system.errors import (
    EXIT_CODES,
    EXIT_FAILED,
    EXIT_STOPPED,
    EXIT_USAGE,
    MISTAKES,
    first_line,
    sentence,
)
from rope_exp.system.files import read_json, write_atomically, write_json
from rope_exp.system.processes import DISPATCHER_ID
from rope_exp.system.signals import StopSignal, end_with_parent

FAILURES = (EXIT_FAILED, EXIT_USAGE)

# torch's own limit on the compilations of one function, past which it runs eagerly.
GRAPHS_OF_A_LENGTH = 8

# Constants of glibc's malloc.h.
M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3


def main() -> int:
    """Train the run in the folder named on the command line; return the exit code."""
    # Before anything slow, so that a signal during imports is caught.
    stop = StopSignal()
    end_with_parent(int(os.environ[DISPATCHER_ID]))

    folder = Path(sys.argv[1])
    code = EXIT_FAILED
    try:
        code = explain_errors(lambda: run(read_config(folder), folder, stop))
    except Exception:
        keep(traceback.format_exc())
        if _world_size() == 1:
            raise
        traceback.print_exc()
    return end_process(code)


def end_process(code: int) -> int:
    """Return `code`; but if one of several ranks fails, exit its process at once.

    Python's normal shutdown would be aborted by torch threads that wait for ranks that are gone.
    """
    if code in FAILURES and _world_size() > 1:
        with ignoring_output_errors():
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)
    return code


def explain_errors(action: Callable[[], int]) -> int:
    """Return the exit code of `action`, and log in one sentence any error that is not a bug.

    A user's mistake gives exit code 2; a broken network, full disk or full memory gives 1.
    """
    try:
        return action()
    except MISTAKES as error:
        log(f"error: {error}")
        return EXIT_USAGE
    except (OSError, MemoryError, RuntimeError) as error:
        # If one rank fails, the others lose their connection to it.
        if _world_size() > 1 and ("gloo" in str(error) or type(error).__name__.startswith("Dist")):
            log(f"error: lost the other processes of this run ({first_line(error)})")
        else:
            log(f"error: {sentence(error)}")
    return EXIT_FAILED


def run(config: RunConfig, folder: Path, stop: StopSignal) -> int:
    """Train one run in this process, as the rank given by the environment.

    The caller holds the run's lock.

    Returns:
        The exit code.
    """
    # Several ranks stop together, in the loop.
    if stop.requested and _world_size() == 1:
        return EXIT_STOPPED

    if os.environ.get("RANK", "0") == "0":
        keep_log(folder / LOG)

    # Imported objects stay alive. Letting Python's collector search them for garbage costs a
    # second at the start, and a step or two in training.
    gc.disable()
    set_up_process(config)

    from rope_exp.data.generated import open_data
    from rope_exp.model.laws import certificate
    from rope_exp.model.own import explained_by
    from rope_exp.training.parallel import Parallel
    from rope_exp.training.record import environment
    from rope_exp.training.trainer import Trainer

    gc.freeze()
    gc.enable()

    train = config.train
    launch = config.launch
    checked = certificate(config.model, config.pe, config.attn, causal=config.causal)
    data = open_data(config.data, config.tokenizer, seq_len=train.seq_len)
    parallel = Parallel(launch.device, train.precision, launch.num_processes)
    is_main = parallel.is_main
    trainer = Trainer(config, folder, data, parallel, stop)

    if is_main:
        facts = {
            "params": trainer.num_parameters,
            "certificate": checked,
            "corpus": data.corpus,
        }
        if launch.device == "cuda":
            facts["attention"] = trainer.attention_backends()
        old = read_env(folder)
        env = environment(config, parallel, old, **facts)
        write_json(folder / ENV, env)
        write_atomically(folder / "tokenizer.json", data.tokenizer_json)
        if trainer.step:
            log(f"{config.name}: resumes from step {trainer.step}")
        for mark in env["marks"][len(old.get("marks", ())) :]:
            log(f"{config.name}: {mark}")
        log(f"{config.name}: {describe_run(config, trainer.num_parameters)}, in {folder}")
        log(f"{config.name}: {describe_start(config, data.num_train_tokens)}")
        if launch.device == "cuda" and trainer.throughput.peak_flops_per_s is None:
            log(
                f"{config.name}: MFU is null: the dense bf16 peak of this GPU is neither listed "
                "nor given as train.peak_tflops"
            )
        if launch.device == "cuda" and trainer.train_step.graphs is None:
            is_one = parallel.world_size == 1
            why = "ROPE_EXP_GRAPHS=0" if is_one else "several processes average their gradients"
            log(f"{config.name}: steps are launched kernel by kernel, not as a graph: {why}")

    gc.collect()
    gc.freeze()
    with explained_by(config.pe, every=False):
        status = trainer.train()

    del trainer
    parallel.end()
    if is_main:
        log(f"{config.name}: {_describe_end(status, folder)}")
    return EXIT_CODES[status]


def set_up_process(config: RunConfig) -> None:
    """Set determinism, compilation and memory options for the whole process."""
    import torch

    # Each sequence length has its own graphs.
    torch._dynamo.config.recompile_limit = GRAPHS_OF_A_LENGTH * len(config.train.staged)

    if config.train.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
        # Filling costs time and changes no number: nothing reads memory before it is written.
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]

    # One compiled block serves every layer; DDP's splitting of graphs by bucket would undo that.
    torch._dynamo.config.optimize_ddp = False

    if config.launch.num_threads != "auto":
        torch.set_num_threads(config.launch.num_threads)
    if config.launch.device == "cpu":
        keep_memory()


def keep_memory() -> None:
    """Make glibc, if that is the C library, keep memory that a step frees for the next step.

    Otherwise it returns every tensor above a threshold of at most 32 MiB to the kernel, which
    zeroes each page again at its next use: a sixth of a step (docs/decisions/010-kernels.md).
    """
    library = ctypes.CDLL(None)
    if not hasattr(library, "mallopt"):
        return

    # Versions before 2.35 accept no threshold above 32 MiB. Setting the trim threshold alone would
    # fix this one at 128 KiB.
    if any(library.mallopt(M_MMAP_THRESHOLD, most) for most in (2**31 - 1, 2**25)):
        library.mallopt(M_TRIM_THRESHOLD, 2**31 - 1)


def describe_run(config: RunConfig, num_parameters: int) -> str:
    """Return the model, data and size of a run, for the first line of its log."""
    return (
        f"{config.pe.label} {config.model.name}, {num_parameters:,} parameters, on "
        f"{config.data.name}, {config.train.num_steps:,} steps, on {config.launch.device}"
    )


def describe_start(config: RunConfig, num_tokens: int | None) -> str:
    """Return the epochs, precision and compilation of a run, for its log.

    Args:
        num_tokens: tokens in the corpus's training side; None: the data is generated.
    """
    train = config.train
    what = "generated data"
    if num_tokens is not None:
        what = f"{train.num_tokens / num_tokens:.3g} epochs"
    how = "compiled" if train.compile else "not compiled"
    return f"{what} in {train.precision}, {how}"


def _describe_end(status: str, folder: Path) -> str:
    """Return a readable summary of the run's end."""
    if status == "stopped":
        return f"stopped; its last checkpoint is in {folder}, and the same command resumes it"
    return f"{describe(read_json(folder / RESULT))}, in {folder}"


def _world_size() -> int:
    """Return the number of ranks that the launcher reports."""
    return int(os.environ.get("WORLD_SIZE", "1"))


if __name__ == "__main__":
    sys.exit(main())
