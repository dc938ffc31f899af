"""Resolution of a config's `auto` keys for this machine, and checks that it can run here.

The dispatcher calls both before it starts any run.
"""

from dataclasses import replace
from typing import Any

from rope_exp.config.run import RunConfig
from rope_exp.config.sections import MIN_VOCAB_SIZE, LaunchConfig, TrainConfig
from rope_exp.system.errors import ConfigError
from rope_exp.system.machine import cpu_has_bf16, gpus, gpus_have_bf16, has_compiler

# Floating-point operations of a run from which compiling pays back, by device. The CPU's is
# measured (docs/performance.md) in a sweep, whose later runs reuse the first one's compiled code.
# A GPU always compiles: by estimate that pays back from 1e14 operations at nano and 4e15 at 125m,
# and a run worth a GPU takes more.
PAYS_TO_COMPILE = {"cpu": 5e12, "cuda": 0.0}


def operations(config: RunConfig) -> int:
    """Return the FLOP of the whole run.

    A pretrained tokenizer's vocabulary is still unknown and is counted as the smallest.
    """
    # Imported late: torch takes a second to import, which a mistake need not wait for.
    from rope_exp.plan.costs import run_flops

    vocab_size = config.known_vocab_size or MIN_VOCAB_SIZE
    return run_flops(config, vocab_size)


def pays_to_compile(config: RunConfig, device: str) -> float:
    """Return the operations from which compiling pays back: each length has its own graphs.

    0: every run is compiled.
    """
    lengths = {stage.seq_len for stage in config.train.staged}
    return PAYS_TO_COMPILE[device] * len(lengths)


def _pays_to_compile(config: RunConfig, device: str) -> bool:
    pays = pays_to_compile(config, device)
    return not pays or operations(config) >= pays


def resolve(config: RunConfig, world_size: int | None = None) -> RunConfig:
    """Return `config` with every `auto` replaced by this machine's value.

    config.yaml records the result.

    Args:
        world_size: of the launcher that started this process, perhaps over several hosts; None:
            we start the processes.
    Raises:
        ConfigError: the config asks for missing GPUs, or its batch does not divide.
    """
    launch = _placed(config.launch, world_size)
    train = config.train
    device = launch.device
    _check_batch(train, int(launch.num_processes))

    has_bf16 = gpus_have_bf16() if device == "cuda" else cpu_has_bf16()
    chosen: dict[str, Any] = {}
    if train.precision == "auto":
        chosen["precision"] = "bf16" if has_bf16 else "fp32"
    if train.compile == "auto":
        chosen["compile"] = _pays_to_compile(config, device) and has_compiler(device)
    if train.deterministic == "auto":
        chosen["deterministic"] = device == "cpu"
    return replace(config, launch=launch, train=replace(train, **chosen))


def _placed(launch: LaunchConfig, world_size: int | None) -> LaunchConfig:
    """Return `launch` with its device, processes and concurrent runs resolved."""
    num_gpus = len(gpus())

    device = launch.device
    if device == "auto":
        device = "cuda" if num_gpus else "cpu"
    if device == "cuda" and not num_gpus:
        raise ConfigError(
            "launch.device",
            launch.device,
            "this machine shows no GPU; a run takes launch.device=auto, a GPU campaign a GPU",
        )

    processes = world_size or launch.num_processes
    if processes == "all":
        processes = max(num_gpus, 1)
    assert isinstance(processes, int)
    if world_size is None and device == "cuda" and processes > num_gpus:
        raise ConfigError("launch.num_processes", processes, f"this machine shows {num_gpus} GPUs")
    if world_size is None and launch.inline and processes > 1:
        raise ConfigError(
            "launch.num_processes",
            processes,
            "must be 1 for launch=inline, which starts no process",
        )

    launch = replace(launch, device=device, num_processes=processes)
    return replace(launch, max_parallel=runs_at_a_time(launch))


def runs_at_a_time(launch: LaunchConfig) -> int:
    """Return `launch.max_parallel`; auto is as many runs as the GPUs allow, and one on a CPU.

    Args:
        launch: with its device and processes resolved.
    """
    if launch.max_parallel != "auto":
        return launch.max_parallel
    places = len(gpus()) * launch.runs_per_gpu
    return max(places // int(launch.num_processes), 1) if launch.device == "cuda" else 1


def _check_batch(train: TrainConfig, num_processes: int) -> None:
    """Refuse a global batch that does not divide into equal micro-batches over the processes."""
    share, rest = divmod(train.global_batch_size, num_processes)
    if rest:
        raise ConfigError(
            "train.global_batch_size",
            train.global_batch_size,
            f"must be a multiple of the {num_processes} processes",
        )

    if share % min(train.micro_batch_size or share, share):
        raise ConfigError(
            "train.micro_batch_size",
            train.micro_batch_size,
            f"must divide a process's share of {share} sequences",
        )

    for stage in train.staged:
        if stage.batch_size % num_processes:
            raise ConfigError(
                "train.stages",
                train.stages,
                f"a step has {stage.batch_size} sequences of {stage.seq_len}, which must be a "
                f"multiple of the {num_processes} processes",
            )
