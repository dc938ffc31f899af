"""What this machine has, read without torch, and the `auto` keys of a config settled by it."""

import os
import shutil
import subprocess
import sysconfig
from pathlib import Path

from rope_exp.config import AUTO, RunConfig
from rope_exp.schema import ConfigError

# Compiling costs tens of seconds a run; below this many steps it does not pay back (docs/LOG.md).
MIN_STEPS_TO_COMPILE = 200
CPU_INFO = Path("/proc/cpuinfo")


def gpus() -> list[str]:
    """The GPUs that runs may use, by UUID where the driver tells it: an index is another card in another container.

    CUDA_VISIBLE_DEVICES limits them; [] without one.
    """
    uuid_by_index: dict[str, str] = {row[0]: row[1] for row in _nvidia_smi("index", "uuid")}
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return list(uuid_by_index.values())
    named = [gpu.strip() for gpu in visible.split(",")]
    return [uuid_by_index.get(gpu, gpu) for gpu in named if gpu not in ("", "-1")]


def gpus_have_bf16() -> bool:
    """Whether every GPU multiplies bfloat16 in hardware (compute capability 8.0, Ampere, or newer)."""
    return all(float(capability) >= 8.0 for (capability,) in _nvidia_smi("compute_cap"))


def _nvidia_smi(*columns: str) -> list[tuple[str, ...]]:
    """One row a GPU, in the order of the PCI bus; [] where there is no driver."""
    if shutil.which("nvidia-smi") is None:
        return []
    query = ["nvidia-smi", f"--query-gpu={','.join(columns)}", "--format=csv,noheader"]
    listed = subprocess.run(query, capture_output=True, text=True, check=False)
    if listed.returncode != 0:
        return []
    return [tuple(cell.strip() for cell in line.split(",")) for line in listed.stdout.splitlines()]


def num_cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cpu_has_bf16() -> bool:
    """Whether the CPU multiplies bfloat16 in hardware; without it bf16 is tens of times slower than float32."""
    try:
        flags = CPU_INFO.read_text(encoding="ascii", errors="replace")
    except OSError:
        return False
    return "amx_bf16" in flags or "avx512_bf16" in flags


def has_compiler(device: str) -> bool:
    """Whether torch.compile has what it needs: a compiler (of C for a GPU, of C++ for a CPU) and Python's headers."""
    compilers = ("gcc", "clang", "cc") if device == "cuda" else ("g++", "clang++", "c++")
    headers = Path(sysconfig.get_path("include"), "Python.h")
    return headers.exists() and any(shutil.which(name) for name in compilers)


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
        precision = "bf16" if (gpus_have_bf16() if device == "cuda" else cpu_has_bf16()) else "fp32"
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
