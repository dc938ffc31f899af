"""The hardware of this machine (GPUs, cores, compiler)."""

import functools
import os
import platform
import re
import shutil
import subprocess
import sysconfig
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from rope_exp.errors import first_line

CPU_INFO = Path("/proc/cpuinfo")


def gpus() -> list[str]:
    """Return the UUIDs of the GPUs that runs may use, as an index may be another card elsewhere.

    CUDA_VISIBLE_DEVICES limits them as in CUDA: entries after an unknown index are hidden, too.
    """
    uuid_by_index: dict[str, str] = dict(_nvidia_smi("index", "uuid"))  # type: ignore[arg-type]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None or not uuid_by_index:
        return list(uuid_by_index.values())
    named = []
    for gpu in map(str.strip, visible.split(",")):
        if gpu not in uuid_by_index and not gpu.startswith(("GPU-", "MIG-")):
            break
        named.append(uuid_by_index.get(gpu, gpu))
    return named


def has_bf16(device: str) -> bool:
    """Return whether the CPU, or every GPU, multiplies bfloat16 in hardware."""
    if device == "cuda":
        return all(float(capability) >= 8.0 for (capability,) in _nvidia_smi("compute_cap"))
    return re.search("amx_bf16|avx512_bf16", _cpu_info()) is not None


@functools.cache
def _nvidia_smi(*columns: str) -> list[tuple[str, ...]]:
    """Return one row per GPU, in the order of the PCI bus; [] if there is no driver."""
    query = f"--query-gpu={','.join(columns)}"
    rows: list[tuple[str, ...]] = []
    with suppress(ChildProcessError):
        listed = output_of("nvidia-smi", query, "--format=csv,noheader,nounits")
        rows = [tuple(line.split(", ")) for line in listed.splitlines()]
    return rows


def num_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cpu_name() -> str:
    """Return the CPU's name, as the kernel reports it."""
    return _cpu_facts("model name") or platform.processor() or platform.machine()


def cpu_kind() -> str:
    """Return the CPU's vendor, family and model: CPUs of one name may round differently."""
    return _cpu_facts("vendor_id", "cpu family", "model") or platform.machine()


def _cpu_facts(*keys: str) -> str:
    """Return the first CPU's values of some keys, "" if the kernel reports none."""
    facts = [re.search(rf"^{key}\s*:\s*(.*)$", _cpu_info(), re.MULTILINE) for key in keys]
    return " ".join(fact[1].strip() for fact in facts if fact)


def _cpu_info() -> str:
    return CPU_INFO.read_text(encoding="ascii", errors="replace") if CPU_INFO.exists() else ""


def has_compiler(device: str) -> bool:
    """Return whether torch.compile finds a compiler, C for a GPU, and Python's headers."""
    compilers = ("gcc", "clang", "cc") if device == "cuda" else ("g++", "clang++", "c++")
    headers = Path(sysconfig.get_path("include"), "Python.h")
    return headers.exists() and any(map(shutil.which, compilers))


PACKAGE = Path(__file__).resolve().parent
ROOT = PACKAGE.parent  # the checkout; site-packages if the package is installed

# The environment variable by which a dispatcher passes its process id to its ranks.
DISPATCHER_ID = "ROPE_EXP_DISPATCHER"


def child_environment(**changes: str) -> dict[str, str]:
    """Return this process's environment with `changes`, for a child that imports this package.

    A checkout comes first on the child's path, as it may not be installed.
    """
    environment = os.environ | changes
    # An installed package holds its configs.
    if not (PACKAGE / "configs").is_dir():
        paths = [str(ROOT), os.environ.get("PYTHONPATH")]
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    return environment


def output_of(*command: str, env: Mapping[str, str] | None = None) -> str:
    """Return a program's output, or raise ChildProcessError with its name and why it failed."""
    try:
        done = subprocess.run(
            command, env=env, capture_output=True, encoding="utf-8", errors="replace", check=True
        )
    except (OSError, subprocess.CalledProcessError) as error:
        why = first_line(getattr(error, "stderr", None) or error)
        raise ChildProcessError(f"{command[0]}: {why}") from None
    return done.stdout.strip()
