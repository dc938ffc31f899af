"""What this machine has, read without torch, and the `auto` keys of a config settled by it."""

import functools
import os
import platform
import shutil
import subprocess
import sysconfig
from itertools import takewhile
from pathlib import Path

CPU_INFO = Path("/proc/cpuinfo")
CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")


def gpus() -> list[str]:
    """The GPUs that runs may use, by UUID where they are numbered: an index is another card in another container.

    CUDA_VISIBLE_DEVICES limits them, and as CUDA reads it: what follows a number that no GPU has is hidden, too. [] on
    a machine without a driver, whatever that variable says.
    """
    uuid_by_index: dict[str, str] = {row[0]: row[1] for row in _nvidia_smi("index", "uuid")}
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None or not uuid_by_index:
        return list(uuid_by_index.values())
    named = (gpu.strip() for gpu in visible.split(","))
    there = takewhile(lambda gpu: gpu in uuid_by_index or gpu.startswith(("GPU-", "MIG-")), named)
    return [uuid_by_index.get(gpu, gpu) for gpu in there]


def gpus_have_bf16() -> bool:
    """Whether every GPU multiplies bfloat16 in hardware (compute capability 8.0, Ampere, or newer)."""
    return all(float(capability) >= 8.0 for (capability,) in _nvidia_smi("compute_cap"))


@functools.cache
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


def memory_size() -> int:
    """The bytes of memory that this machine, or the container that we are in, has."""
    installed = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limit = CGROUP_LIMIT.read_text(encoding="ascii").strip() if CGROUP_LIMIT.exists() else "max"
    return installed if limit == "max" else min(installed, int(limit))


def gpu_memory_size() -> int | None:
    """The bytes of the smallest GPU's memory; None where the driver does not tell."""
    sizes = [
        int(size.removesuffix(" MiB"))
        for (size,) in _nvidia_smi("memory.total")
        if size.endswith(" MiB")
    ]
    return min(sizes) * 2**20 if sizes else None


def has_compiler(device: str) -> bool:
    """Whether torch.compile has what it needs: a compiler (of C for a GPU, of C++ for a CPU) and Python's headers."""
    compilers = ("gcc", "clang", "cc") if device == "cuda" else ("g++", "clang++", "c++")
    headers = Path(sysconfig.get_path("include"), "Python.h")
    return headers.exists() and any(shutil.which(name) for name in compilers)


def cpu_name() -> str:
    """As the kernel calls it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return platform.processor()
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")),
        platform.machine(),
    )
