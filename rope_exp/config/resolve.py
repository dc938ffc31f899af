"""The `auto` keys of a config, resolved for this machine; and what this machine cannot run.

No torch: the dispatcher asks before any run is started.
"""

from rope_exp.config.costs import flops_per_token, memory_bytes, num_parameters
from rope_exp.config.run import RunConfig
from rope_exp.config.sections import AUTO, MIN_VOCAB_SIZE
from rope_exp.system.errors import ConfigError
from rope_exp.system.machine import (
    cpu_has_bf16,
    gpu_memory_size,
    gpus,
    gpus_have_bf16,
    has_compiler,
    memory_size,
)

# What a run must compute for compiling to pay back, in floating-point operations, by device. On a
# CPU as measured (docs/performance.md) where runs of a sweep share what the first compiled; on a
# GPU by estimate: half a minute to compile, against a quarter of the peak eager and nearly half
# compiled.
PAYS_TO_COMPILE = {"cpu": 5e12, "cuda": 1e16}

# Sizes in bytes, each beside the key that a user would change for it, and its value.
Parts = list[tuple[int, tuple[str, object]]]

PROCESS_BYTES = 150 * 2**20  # of a process that has imported torch, before it holds a model
HOPELESS = 1.5  # the estimate of memory is rough: only what exceeds the machine by this is refused


def operations(config: RunConfig) -> float:
    """Return the FLOP of the whole run.

    A pretrained tokenizer's vocabulary is not known yet, and counted as the smallest.
    """
    vocab_size = config.tokenizer.known_vocab_size or MIN_VOCAB_SIZE
    return config.train.num_tokens * float(flops_per_token(config, vocab_size))


def settle(config: RunConfig, world_size: int | None = None) -> RunConfig:
    """Return `config` with every `auto` replaced by what this machine gives it.

    The result is what config.yaml records.

    Args:
        world_size: of the launcher that started this process, perhaps over several hosts; None:
            we start the processes.
    Raises:
        ConfigError: the config asks for GPUs that are not there, or its batch does not divide.
    """
    config = _placed(config, world_size)
    train = config.train
    device = config.launch.device

    precision = train.precision
    if precision == AUTO:
        has_bf16 = gpus_have_bf16() if device == "cuda" else cpu_has_bf16()
        precision = "bf16" if has_bf16 else "fp32"

    compiled = train.compile
    if compiled == AUTO:
        compiled = operations(config) >= PAYS_TO_COMPILE[device] and has_compiler(device)

    deterministic = train.deterministic
    if deterministic == AUTO:
        deterministic = device == "cpu"

    return config.replace(
        "train", precision=precision, compile=compiled, deterministic=deterministic
    )


def _placed(config: RunConfig, world_size: int | None) -> RunConfig:
    """Return `config` with its device, its processes and the runs at a time resolved."""
    launch = config.launch
    num_gpus = len(gpus())

    device = launch.device
    if device == AUTO:
        device = "cuda" if num_gpus else "cpu"
    if device == "cuda" and not num_gpus:
        allowed = "this machine shows no GPU; use launch=local"
        raise ConfigError("launch.device", launch.device, allowed)

    processes = world_size or launch.num_processes
    if processes == "all":
        processes = max(num_gpus, 1)
    assert isinstance(processes, int)
    if device == "cuda" and world_size is None and processes > num_gpus:
        allowed = f"this machine shows {num_gpus} GPUs"
        raise ConfigError("launch.num_processes", processes, allowed)
    if launch.inline and world_size is None and processes > 1:
        allowed = "must be 1 for launch=inline, which starts no process"
        raise ConfigError("launch.num_processes", processes, allowed)

    parallel = launch.max_parallel
    if parallel == AUTO:
        parallel = max(num_gpus // processes, 1) if device == "cuda" else 1

    check_batch(config, processes)
    return config.replace("launch", device=device, num_processes=processes, max_parallel=parallel)


def check_batch(config: RunConfig, num_processes: int) -> None:
    """Refuse a global batch that does not divide into equal micro-batches over the processes."""
    train = config.train

    if train.global_batch_size % num_processes:
        allowed = f"must be a multiple of the {num_processes} processes"
        raise ConfigError("train.global_batch_size", train.global_batch_size, allowed)

    share = train.global_batch_size // num_processes
    micro = train.micro_batch_size
    if micro is not None and share % min(micro, share):
        allowed = f"must divide a process's share of {share} sequences"
        raise ConfigError("train.micro_batch_size", micro, allowed)


def check_memory(
    config: RunConfig, vocab_size: int | None = None, num_here: int | None = None
) -> None:
    """Refuse a resolved config that has no hope of fitting in this machine's memory, or a GPU's.

    Not part of resolving: a plan is for other machines too.

    Args:
        vocab_size: None: the config's own, and the smallest for a pretrained tokenizer.
        num_here: how many of the run's processes are on this machine; None: all.
    """
    train = config.train
    num_processes = config.launch.num_processes
    assert isinstance(num_processes, int)
    num_here = num_here or num_processes
    vocab_size = vocab_size or config.tokenizer.known_vocab_size or MIN_VOCAB_SIZE

    of_weights = 16 * num_parameters(config.architecture(vocab_size))
    of_activations = memory_bytes(config, vocab_size, num_processes) - of_weights
    batch = ("train.global_batch_size", train.global_batch_size)
    micro = ("train.micro_batch_size", train.micro_batch_size) if train.micro_batch_size else batch
    of_model: Parts = [(of_weights, ("model", config.model.name)), (of_activations, micro)]

    # The first process reads the whole batch, as 64-bit ids, and lists its windows.
    of_batch = train.global_batch_size * (8 * (train.seq_len + 1) + 64)
    of_processes = num_here * PROCESS_BYTES
    on_host: Parts = [(of_batch, batch), (of_processes, ("launch.num_processes", num_processes))]

    if config.launch.device == "cpu":
        on_host += [(num_here * size, key) for size, key in of_model]
    else:
        _check_fits(of_model, gpu_memory_size(), "a GPU here")
    _check_fits(on_host, memory_size(), "this machine")


def _check_fits(parts: Parts, available: int | None, where: str) -> None:
    needed = sum(size for size, _ in parts)
    if available is None or needed <= HOPELESS * available:
        return

    _, (key, value) = max(parts, key=lambda part: part[0])
    numbers = f"about {needed / 2**30:,.0f} GiB, and {where} has {available / 2**30:,.0f}"
    raise ConfigError(key, value, f"takes most of the memory that the run needs: {numbers}")
