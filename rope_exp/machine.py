"""What this machine has, read without torch, and the `auto` keys of a config settled by it."""

import os
import shutil
import subprocess
from pathlib import Path

from rope_exp.config import AUTO, RunConfig
from rope_exp.schema import ConfigError

# Compiling costs tens of seconds a run; below this many steps it does not pay back (docs/LOG.md).
MIN_STEPS_TO_COMPILE = 200


def gpus() -> list[str]:
    """The ids of the GPUs that runs may use, as CUDA_VISIBLE_DEVICES would name them; [] without one."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [gpu for gpu in visible.split(",") if gpu.strip() not in ("", "-1")]
    if shutil.which("nvidia-smi") is None:
        return []
    query = ["nvidia-smi", "--query-gpu=index", "--format=csv,noheader"]
    listed = subprocess.run(query, capture_output=True, text=True, check=False)
    return listed.stdout.split() if listed.returncode == 0 else []


def num_cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cpu_has_bf16() -> bool:
    """Whether the CPU multiplies bfloat16 in hardware; without it bf16 is tens of times slower than float32."""
    try:
        flags = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace")
    except OSError:
        return False
    return "amx_bf16" in flags or "avx512_bf16" in flags


def has_compiler(device: str) -> bool:
    """Whether torch.compile has what it needs: Triton comes with CUDA torch, a CPU needs a C++ compiler."""
    return device == "cuda" or any(shutil.which(name) for name in ("g++", "clang++", "c++"))


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
        raise ConfigError("launch.device", launch.device, "this machine shows no GPU; use launch=local")
    processes = world_size or (max(num_gpus, 1) if launch.num_processes == "all" else launch.num_processes)
    if device == "cuda" and world_size is None and processes > num_gpus:
        raise ConfigError("launch.num_processes", processes, f"this machine shows {num_gpus} GPUs")
    parallel = launch.max_parallel
    if parallel == AUTO:
        parallel = max(num_gpus // processes, 1) if device == "cuda" else 1
    if launch.inline and world_size is None and processes > 1:
        raise ConfigError("launch.num_processes", processes, "must be 1 for launch=inline, which starts no process")
    check_batch(config, processes)

    precision, compiled, deterministic = train.precision, train.compile, train.deterministic
    if precision == AUTO:
        precision = "bf16" if device == "cuda" or cpu_has_bf16() else "fp32"
    if compiled == AUTO:
        compiled = train.num_steps >= MIN_STEPS_TO_COMPILE and has_compiler(device)
    if deterministic == AUTO:
        deterministic = device == "cpu"
    config = config.replace("launch", device=device, num_processes=processes, max_parallel=parallel)
    return config.replace("train", precision=precision, compile=compiled, deterministic=deterministic)


def check_batch(config: RunConfig, num_processes: int) -> None:
    """Refuse a global batch that does not divide into equal micro-batches over the processes."""
    train = config.train
    if train.global_batch_size % num_processes:
        raise ConfigError(
            "train.global_batch_size", train.global_batch_size, f"must be a multiple of the {num_processes} processes"
        )
    share = train.global_batch_size // num_processes
    if train.micro_batch_size is not None and share % min(train.micro_batch_size, share):
        raise ConfigError(
            "train.micro_batch_size", train.micro_batch_size, f"must divide a process's share of {share} sequences"
        )
