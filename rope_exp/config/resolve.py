"""The `auto` keys of a config, resolved for this machine; and configs that this machine cannot run. No torch."""

from rope_exp.config.costs import flops_per_token, memory_bytes, num_parameters
from rope_exp.config.run import AUTO, MIN_VOCAB_SIZE, RunConfig
from rope_exp.system.errors import ConfigError
from rope_exp.system.machine import (
    cpu_has_bf16,
    gpu_memory_size,
    gpus,
    gpus_have_bf16,
    has_compiler,
    memory_size,
)

# What a run must compute for compiling to pay back, in floating-point operations, by device. On a CPU as measured
# (docs/performance.md) where runs of a sweep share what the first compiled; on a GPU by estimate: half a minute to
# compile, against a quarter of the peak eager and nearly half compiled.
PAYS_TO_COMPILE = {"cpu": 5e12, "cuda": 1e16}
PROCESS_BYTES = 150 * 2**20  # of a process that has imported torch, before it holds a model
HOPELESS = 1.5  # the estimate of a run's memory is rough: only what exceeds the machine by so much is refused


def operations(config: RunConfig) -> float:
    """Of the whole run, in FLOP; a pretrained tokenizer's vocabulary is not known yet, and counted as the smallest."""
    train = config.train
    vocab_size = config.tokenizer.known_vocab_size or MIN_VOCAB_SIZE
    return (
        train.num_steps
        * train.global_batch_size
        * train.seq_len
        * float(flops_per_token(config, vocab_size))
    )


def settle(config: RunConfig, world_size: int | None = None) -> RunConfig:
    """`config` with every `auto` replaced by what this machine gives it: the config that config.yaml records.

    Args:
        world_size: of the launcher that started this process, perhaps over several hosts; None: we start the processes.
    Raises:
        ConfigError: the config asks for GPUs that are not there, or its batch does not divide.
    """
    launch, train, num_gpus = config.launch, config.train, len(gpus())
    device = launch.device if launch.device != AUTO else ("cuda" if num_gpus else "cpu")
    if device == "cuda" and not num_gpus:
        raise ConfigError(
            "launch.device", launch.device, "this machine shows no GPU; use launch=local"
        )
    processes = world_size or (
        max(num_gpus, 1) if launch.num_processes == "all" else launch.num_processes
    )
    if device == "cuda" and world_size is None and processes > num_gpus:
        raise ConfigError("launch.num_processes", processes, f"this machine shows {num_gpus} GPUs")
    parallel = launch.max_parallel
    if parallel == AUTO:
        parallel = max(num_gpus // processes, 1) if device == "cuda" else 1
    if launch.inline and world_size is None and processes > 1:
        raise ConfigError(
            "launch.num_processes",
            processes,
            "must be 1 for launch=inline, which starts no process",
        )
    check_batch(config, processes)
    precision, compiled, deterministic = train.precision, train.compile, train.deterministic
    if precision == AUTO:
        precision = "bf16" if (gpus_have_bf16() if device == "cuda" else cpu_has_bf16()) else "fp32"
    if compiled == AUTO:
        compiled = operations(config) >= PAYS_TO_COMPILE[device] and has_compiler(device)
    if deterministic == AUTO:
        deterministic = device == "cpu"
    config = config.replace("launch", device=device, num_processes=processes, max_parallel=parallel)
    return config.replace(
        "train", precision=precision, compile=compiled, deterministic=deterministic
    )


def check_memory(
    config: RunConfig, vocab_size: int | None = None, num_here: int | None = None
) -> None:
    """Refuse a settled config that has no hope of fitting in this machine's memory, or in a GPU's.

    Not part of settling: scripts/plan.py plans for other machines.

    Args:
        vocab_size: None: the config's own, and the smallest that there is for a pretrained tokenizer.
        num_here: how many of the run's processes are on this machine; None: all.
    """
    launch, train, on_cpu = config.launch, config.train, config.launch.device == "cpu"
    assert isinstance(launch.num_processes, int)
    vocab_size = vocab_size or config.tokenizer.known_vocab_size or MIN_VOCAB_SIZE
    num_here = num_here or launch.num_processes
    batch = ("train.global_batch_size", train.global_batch_size)
    micro = (
        batch
        if train.micro_batch_size is None
        else ("train.micro_batch_size", train.micro_batch_size)
    )
    of_weights = 16 * num_parameters(config.model, config.pe, vocab_size)
    of_activations = memory_bytes(config, vocab_size, launch.num_processes) - of_weights
    of_model = [(of_weights, ("model", config.model.name)), (of_activations, micro)]
    # The first process reads the whole batch, as 64-bit ids, and lists its windows.
    on_host: list[tuple[int, tuple[str, object]]] = [
        (train.global_batch_size * (8 * (train.seq_len + 1) + 64), batch)
    ]
    on_host += [(num_here * PROCESS_BYTES, ("launch.num_processes", launch.num_processes))]
    if on_cpu:
        on_host += [(num_here * size, what) for size, what in of_model]
    for parts, size, where in (
        (on_host, memory_size(), "this machine"),
        (of_model, None if on_cpu else gpu_memory_size(), "a GPU here"),
    ):
        needed = sum(part for part, _ in parts)
        if size is not None and needed > HOPELESS * size:
            key, value = max(parts)[1]
            numbers = f"about {needed / 2**30:,.0f} GiB, and {where} has {size / 2**30:,.0f}"
            raise ConfigError(key, value, f"takes most of the memory that the run needs: {numbers}")


def check_batch(config: RunConfig, num_processes: int) -> None:
    """Refuse a global batch that does not divide into equal micro-batches over the processes."""
    train = config.train
    if train.global_batch_size % num_processes:
        raise ConfigError(
            "train.global_batch_size",
            train.global_batch_size,
            f"must be a multiple of the {num_processes} processes",
        )
    share = train.global_batch_size // num_processes
    if train.micro_batch_size is not None and share % min(train.micro_batch_size, share):
        raise ConfigError(
            "train.micro_batch_size",
            train.micro_batch_size,
            f"must divide a process's share of {share} sequences",
        )
