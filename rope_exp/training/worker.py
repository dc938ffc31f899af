"""One rank of one run: read the run's saved config, make sure the process is what the config asked for, and fit.

Started by launch.py, or entered from train.py when that process is already a rank of `accelerate launch` or torchrun.
"""

import contextlib
import ctypes
import gc
import os
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rope_exp.config.resolve import PAYS_TO_COMPILE, check_batch, operations
from rope_exp.config.run import RunConfig
from rope_exp.run.folder import ENV, RESULT, describe, read_config, read_env
from rope_exp.run.provenance import machine_facts
from rope_exp.system.console import say
from rope_exp.system.errors import EXIT_CODES, EXIT_STOPPED, ConfigError, RecordError
from rope_exp.system.files import read_json, write_atomically, write_json
from rope_exp.system.processes import DISPATCHER_ID, FAILURE_FILE
from rope_exp.system.signals import StopSignal, end_with_parent

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # glibc's malloc.h
MARKED = (
    "device",
    "torch",
    "num_threads",
    "git",
)  # a run that goes on with another of these says so


def main() -> int:
    """`python -m rope_exp.training.worker RUN_FOLDER`."""
    stop = StopSignal()  # before anything slow, so that a signal during imports is heard
    end_with_parent(int(os.environ[DISPATCHER_ID]))
    folder = Path(sys.argv[1])
    failure, unsaid = os.environ.get(FAILURE_FILE), ""
    try:
        code = guarded(lambda: run(read_config(folder), folder, stop))
    except Exception:
        if failure is None:
            raise
        code, unsaid = 1, traceback.format_exc()
    if failure is not None and code in (1, 2):
        # One of several ranks: the dispatcher shows what the first to fail has to say, not what the others made of it.
        with contextlib.suppress(OSError):
            Path(failure).write_text(unsaid, encoding="utf-8")
    return end(code)


def end(code: int) -> int:
    """Give `code` back; but end this process at once where it is one of several that fail.

    Python's own end would meet threads of torch that wait for processes which are gone, and be aborted by them.
    """
    if code in (1, 2) and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        with contextlib.suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)
    return code


def guarded(action: Callable[[], int]) -> int:
    """Run `action`; a user's mistake ends in one sentence and exit code 2, a full disk or memory in 1."""
    from rope_exp.system.errors import CheckpointError, DataError

    try:
        return action()
    except (ConfigError, RecordError, CheckpointError) as error:
        say(f"error: {error}")
        return 2
    except (DataError, OSError) as error:
        say(f"error: {error}")
        return 1
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError) and not _is_out_of_memory(error):
            raise
        what = str(error).partition("\n")[0] or "Python's heap is full"
        say(f"error: out of memory ({what}); a smaller train.micro_batch_size takes less")
        return 1


def _is_out_of_memory(error: RuntimeError) -> bool:
    """Whether torch had no memory left: a type of its own on a GPU, words alone on a CPU."""
    import torch

    return isinstance(error, torch.OutOfMemoryError) or "DefaultCPUAllocator" in str(error)


def run(config: RunConfig, folder: Path, stop: StopSignal) -> int:
    """Train one run in this process, as the rank that the environment says it is; whoever calls holds the run's lock.

    Returns:
        The exit code.
    """
    if (
        stop.requested and int(os.environ.get("WORLD_SIZE", "1")) == 1
    ):  # several ranks leave together, from the loop
        return EXIT_STOPPED

    set_up_process(config)

    from rope_exp.data.prepare import prepare
    from rope_exp.model.laws import certificate
    from rope_exp.training.trainer import Trainer

    checked = certificate(config.model, config.pe)
    prepared = prepare(config.data, config.tokenizer, seq_len=config.train.seq_len)
    accelerator = _accelerator(config)
    trainer = Trainer(config, folder, prepared, accelerator, stop)
    if accelerator.is_main_process:
        env = _environment(config, accelerator, prepared.corpus, checked, read_env(folder))
        write_json(folder / ENV, env)
        write_atomically(
            folder / "tokenizer.json", prepared.tokenizer_file.read_text(encoding="utf-8")
        )
        say(f"{config.name}: {_described(config)}")
    status = trainer.fit()
    # Before the process group ends: DDP holds it, and a group that is freed last can wait for its own thread for ever.
    del trainer
    accelerator.free_memory()
    gc.collect()
    accelerator.end_training()
    if os.environ.get("RANK", "0") == "0":
        say(f"{config.name}: {_said(status, folder)}")
    return EXIT_CODES[status]


def set_up_process(config: RunConfig) -> None:
    """Before torch trains: what is deterministic, compiled or kept in memory is a setting of the whole process."""
    import torch

    if config.train.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
        # Filling costs time and decides no number here: nothing reads memory before it is written.
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    # One compiled block serves every layer; DDP's own splitting of graphs by bucket would undo that.
    torch._dynamo.config.optimize_ddp = False
    if config.launch.device == "cpu":
        _keep_memory()


def _keep_memory() -> None:
    """Have the C library keep what a step frees for the next, where it is glibc.

    Else it hands every tensor above 32 MiB at the most back to the kernel, which fills each page with zeros again when
    it is next touched: a sixth of a step (docs/performance.md).
    """
    library = ctypes.CDLL(None)
    # Versions before 2.35 take no threshold above 32 MiB; and to set the other alone would fix this one at 128 KiB.
    if hasattr(library, "mallopt") and any(
        library.mallopt(M_MMAP_THRESHOLD, most) for most in (2**31 - 1, 2**25)
    ):
        library.mallopt(M_TRIM_THRESHOLD, 2**31 - 1)


def _described(config: RunConfig) -> str:
    """How the run trains, for its log."""
    pays, takes = PAYS_TO_COMPILE[config.launch.device], operations(config)
    short = (
        f": it pays back from {pays:.0e} operations on, and this run takes {takes:.1e}"
        if takes < pays
        else ""
    )
    how = "compiled" if config.train.compile else f"not compiled{short}"
    return f"{config.train.precision} on {config.launch.device}, {how}"


def _said(status: str, folder: Path) -> str:
    """How the run ended, for a person."""
    if status == "stopped":
        return f"stopped; its last checkpoint is in {folder}, and the same command goes on"
    return f"{describe(read_json(folder / RESULT))}, in {folder}"


def _accelerator(config: RunConfig) -> Any:
    """accelerate's Accelerator, made sure of: launchers have started one process where two were asked for."""
    import torch
    from accelerate import Accelerator, DistributedDataParallelKwargs

    launch, precision = config.launch, config.train.precision
    accelerator = Accelerator(
        cpu=launch.device == "cpu",
        mixed_precision="bf16" if precision == "bf16" else "no",
        kwargs_handlers=[DistributedDataParallelKwargs(gradient_as_bucket_view=True)],
    )
    assert accelerator.num_processes == launch.num_processes, (
        f"launch.num_processes={launch.num_processes}, but this launcher started {accelerator.num_processes}"
    )
    assert accelerator.device.type == launch.device, (
        f"{launch.device} asked for, {accelerator.device} given"
    )
    assert str(accelerator.state.dynamo_plugin.backend) in ("DynamoBackend.NO", "NO"), (
        "train.compile decides compiling"
    )
    expected = {"MULTI_GPU" if launch.device == "cuda" else "MULTI_CPU"}
    if launch.num_processes == 1:
        expected.add("NO")  # torchrun may start one process, too
    assert accelerator.distributed_type.name in expected, accelerator.distributed_type
    if (
        precision == "bf16"
        and launch.device == "cuda"
        and not torch.cuda.is_bf16_supported(including_emulation=False)
    ):
        raise ConfigError(
            "train.precision", precision, f"{torch.cuda.get_device_name()} has no bf16; use fp32"
        )
    check_batch(config, accelerator.num_processes)
    return accelerator


def _environment(
    config: RunConfig,
    accelerator: Any,
    corpus: dict[str, Any],
    checked: dict[str, Any],
    old: dict[str, Any],
) -> dict[str, Any]:
    """env.json: what this run ran on. `marks` keeps what changed when it went on elsewhere."""
    facts = machine_facts(accelerator.device.type)
    now = {"world_size": accelerator.num_processes} | {key: facts.pop(key) for key in MARKED}
    marks = [*old.get("marks", [])]
    marks += [
        f"went on with {key} {now[key]} after {old[key]}"
        for key in now
        if key in old and old[key] != now[key]
    ]
    return {
        **now,
        "marks": marks,
        "started": [*old.get("started", []), time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())],
        **facts,
        "deterministic": config.train.deterministic,
        "accelerate": {
            "distributed_type": accelerator.distributed_type.name,
            "mixed_precision": accelerator.mixed_precision,
            "device": str(accelerator.device),
            "num_processes": accelerator.num_processes,
        },
        "certificate": checked,
        "corpus": corpus,
    }


if __name__ == "__main__":
    sys.exit(main())
