"""Resolution of a config's `auto` keys for this machine, and checks that it can run here."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from rope_exp.config import LaunchConfig, RunConfig
from rope_exp.identity import Rule, refuse
from rope_exp.machine import gpus, has_bf16, has_compiler
from rope_exp.sections import MIN_VOCAB_SIZE

# Floating-point operations of a run from which compiling pays back on a CPU, as measured
# (docs/performance.md) in a sweep, whose later runs reuse the first one's compiled code.
# A GPU always compiles: by estimate that pays back from 1e14 operations at nano and 4e15 at 125m,
# and a run worth a GPU takes more.
PAYS_TO_COMPILE = 5e12


def operations(config: RunConfig) -> int:
    """Return the FLOP of the whole run; a pretrained tokenizer counts as the smallest."""
    # Imported late: torch takes a second to import, which a mistake need not wait for.
    from rope_exp.costs import flops_per_token

    vocab_size = config.known_vocab_size or MIN_VOCAB_SIZE
    return sum(
        stage.num_tokens * flops_per_token(config, vocab_size, stage.seq_len)
        for stage in config.train.staged
    )


def resolve(config: RunConfig, world_size: int | None = None) -> RunConfig:
    """Return `config` with every `auto` replaced by this machine's value.

    Args:
        world_size: of the launcher that started this process, perhaps over several hosts; None:
            we start the processes.
    Raises:
        ConfigError: the config asks for missing GPUs, or its batch does not divide.
    """
    launch = config.launch
    device = launch.device
    if device == "auto":
        device = "cuda" if gpus() else "cpu"
    processes = world_size or launch.num_processes
    if processes == "all":
        processes = max(len(gpus()), 1)
    launch = replace(launch, device=device, num_processes=processes)
    launch = replace(launch, max_parallel=runs_at_a_time(launch))
    config = replace(config, launch=launch)
    refuse(config, _rules(config, world_size is None))

    train = config.train
    chosen: dict[str, Any] = {}
    if train.precision == "auto":
        chosen["precision"] = "bf16" if has_bf16(device) else "fp32"
    if train.compile == "auto":
        # Each length has its own graphs.
        num_lengths = len({stage.seq_len for stage in train.staged})
        pays = device == "cuda" or operations(config) >= PAYS_TO_COMPILE * num_lengths
        chosen["compile"] = pays and has_compiler(device)
    if train.deterministic == "auto":
        chosen["deterministic"] = device == "cpu"
    return config.replace("train", **chosen)


def runs_at_a_time(launch: LaunchConfig) -> int:
    """Return `launch.max_parallel`; auto is as many runs as the GPUs allow, and one on a CPU."""
    if launch.max_parallel != "auto":
        return launch.max_parallel
    places = len(gpus()) * launch.runs_per_gpu
    return max(places // int(launch.num_processes), 1) if launch.device == "cuda" else 1


def _rules(config: RunConfig, starts_processes: bool) -> Iterator[Rule]:
    """Yield what this machine lacks, and batches that do not divide into equal parts."""
    train = config.train
    launch = config.launch
    num_gpus = len(gpus())
    on_gpus = launch.device == "cuda"
    count = int(launch.num_processes)
    reason = "this machine shows no GPU; a run takes launch.device=auto, a GPU campaign a GPU"
    yield on_gpus and not num_gpus, "launch.device", reason
    if starts_processes:
        reason = f"this machine shows {num_gpus} GPUs"
        yield on_gpus and count > num_gpus, "launch.num_processes", reason
        reason = "must be 1 for launch=inline, which starts no process"
        yield launch.inline and count > 1, "launch.num_processes", reason

    share, rest = divmod(train.global_batch_size, count)
    reason = f"must be a multiple of the {count} processes"
    yield rest, "train.global_batch_size", reason
    is_odd = share % min(train.micro_batch_size or share, share)
    yield is_odd, "train.micro_batch_size", f"must divide a process's share of {share} sequences"
    for stage in train.staged:
        step = f"a step has {stage.batch_size} sequences of {stage.seq_len}, which"
        yield stage.batch_size % count, "train.stages", f"{step} {reason}"
