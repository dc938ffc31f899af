"""This machine and this package: GPUs, cores, compiler, versions, and the commit of the code."""

import functools
import os
import platform
import re
import shutil
import socket
import subprocess
import sysconfig
import time
from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

from rope_exp.errors import ConfigError, first_line, log
from rope_exp.version import __version__

PACKAGE = Path(__file__).resolve().parent
ROOT = PACKAGE.parent  # the checkout; site-packages if the package is installed
# Paths of a checkout that can change a number.
CODE = ("rope_exp", "configs", "train.py", "scripts", "pyproject.toml", "constraints.txt")
CPU_INFO = Path("/proc/cpuinfo")
CPU_TIMES = Path("/proc/stat")
LOOK_SECONDS = 0.5  # for which `idle_cores` looks
BUSY_CORES = 0.3  # from here on, waiting threads make room for other work
# Looks of a thread that waits, before it sleeps.
SPIN_ALONE = "25000"
SPIN_BESIDE_WORK = "1000"
# A container's limit, in version 2 of control groups and in version 1.
MEMORY_LIMITS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)
# A container's quota of processor time and its period, in microseconds.
CPU_QUOTA = Path("/sys/fs/cgroup/cpu.max")
# The environment variable by which a dispatcher passes its process id to its ranks.
DISPATCHER_ID = "ROPE_EXP_DISPATCHER"

PACKAGES = (
    "torch",
    "accelerate",
    "datasets",
    "hydra-core",
    "numpy",
    "safetensors",
    "tokenizers",
    "transformers",
    "wandb",
)
# A run that resumes where one of these has changed notes it; so does a table of runs that differ in
# one.
MARKED = ("world_size", "device", "cpu", "torch", "num_threads", "git")


def gpus() -> list[str]:
    """Return the UUIDs of the GPUs that runs may use.

    They are UUIDs, because an index may mean another card in another process.
    CUDA_VISIBLE_DEVICES limits them as in CUDA: entries after an unknown index are hidden, too. Its
    numbers count cards in the order of the PCI bus, as nvidia-smi does. CUDA counts so only with
    CUDA_DEVICE_ORDER=PCI_BUS_ID.
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
    return re.search("amx_bf16|avx512_bf16", _cpu_info("flags")) is not None


@functools.cache
def _nvidia_smi(*columns: str) -> list[tuple[str, ...]]:
    """Return one row per GPU, in the order of the PCI bus; [] if there is no driver."""
    query = f"--query-gpu={','.join(columns)}"
    try:
        listed = output_of("nvidia-smi", query, "--format=csv,noheader,nounits")
    except ChildProcessError:
        return []
    return [tuple(line.split(", ")) for line in listed.splitlines()]


def num_cores() -> int:
    """Return the number of cores that this process may use, here or in its container."""
    count = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        count = len(os.sched_getaffinity(0))
    # Without a quota the file says `max`.
    with suppress(OSError, ValueError):
        quota, period = map(int, CPU_QUOTA.read_text(encoding="ascii").split())
        count = min(count, max(quota // period, 1))
    return count


def idle_cores() -> float:
    """Return how many of the cores that this process may use are idle, while it sleeps.

    Where the kernel does not say, all of them.
    """
    before = _idle_seconds()
    if before is None:
        return num_cores()
    began = time.monotonic()
    time.sleep(LOOK_SECONDS)
    after = _idle_seconds()
    assert after is not None
    return (after - before) / (time.monotonic() - began)


def _idle_seconds() -> float | None:
    """Return the idle seconds of this process's cores since the machine started, together."""
    if not (CPU_TIMES.exists() and hasattr(os, "sched_getaffinity")):
        return None
    names = {f"cpu{number}" for number in os.sched_getaffinity(0)}
    ticks = 0
    for line in CPU_TIMES.read_text(encoding="ascii").splitlines():
        name, *counts = line.split()
        if name in names:
            # user, nice, system, idle, iowait, ...
            ticks += int(counts[3]) + int(counts[4])
    return ticks / os.sysconf("SC_CLK_TCK")


def set_waiting(
    environment: dict[str, str], num_threads: int | Literal["auto"], *, looks: bool
) -> None:
    """Set how long the threads of a run spin while they wait for each other, unless a user has.

    Spinning saves a tenth of a step on idle cores. Beside other work, threads that spin take the
    cores from those that they wait for, and a step takes several times as long
    (docs/performance.md). No number of the run depends on it.

    Args:
        environment: of the run's processes; changed.
        num_threads: of each process; auto: OMP_NUM_THREADS of the environment, which may be a list.
        looks: look at the machine again, as no other run of this command is running.
    """
    if num_threads == "auto":
        num_threads = int(environment["OMP_NUM_THREADS"].partition(",")[0])
    if num_threads == 1 or environment.keys() & {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"}:
        return
    if looks:
        spin_count.cache_clear()
    environment["GOMP_SPINCOUNT"] = spin_count()


@functools.cache
def spin_count() -> str:
    """Return how many times a waiting thread looks whether it may go on, before it sleeps.

    While a run of this command is running, the last answer holds: cores are busy with that run.
    """
    busy = num_cores() - idle_cores()
    if busy < BUSY_CORES:
        return SPIN_ALONE
    log(f"other work keeps {busy:.1f} cores busy; waiting threads make room for it")
    return SPIN_BESIDE_WORK


def total_memory() -> int:
    """Return the bytes of memory of this machine, or of the container that this process is in."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for path in MEMORY_LIMITS:
        # Without a limit the file says `max`.
        with suppress(OSError, ValueError):
            limits.append(int(path.read_text(encoding="ascii")))
    return min(limits)


def check_threads() -> None:
    """Refuse an invalid OMP_NUM_THREADS.

    OpenMP would ignore it and take all cores. Empty counts as unset.
    """
    value = os.environ.get("OMP_NUM_THREADS", "")
    # A list has a number for each level of nested threads.
    if value.strip() and not re.fullmatch(r"\s*0*[1-9]\d*\s*(,\s*0*[1-9]\d*\s*)*", value):
        reason = "must be a number of threads from 1; unset, a process gets its share of the cores"
        raise ConfigError("OMP_NUM_THREADS", value, reason)


def _cpu_info(*keys: str) -> str:
    """Return the first CPU's values of some keys, "" if the kernel reports none."""
    if not CPU_INFO.exists():
        return ""
    text = CPU_INFO.read_text(encoding="ascii", errors="replace")
    values = []
    for key in keys:
        match = re.search(rf"^{key}\s*:\s*(.*)$", text, re.MULTILINE)
        if match:
            values.append(match[1].strip())
    return " ".join(values)


def has_compiler(device: str) -> bool:
    """Return whether torch.compile finds a compiler, C for a GPU, and Python's headers."""
    compilers = ("gcc", "clang", "cc") if device == "cuda" else ("g++", "clang++", "c++")
    headers = Path(sysconfig.get_path("include"), "Python.h")
    return headers.exists() and any(map(shutil.which, compilers))


def machine_environment(device: str) -> dict[str, Any]:
    """Return the hardware, versions and commit behind any measurement in this process.

    env.json has these keys. The argument `device` is cpu or cuda; the key `device` is the
    hardware's name. The commit is null in an installed copy, and where git fails.
    """
    import torch

    # Runs are also trained where git fails.
    git = None
    with suppress(ConfigError):
        git = git_state()
    versions = {}
    for name in PACKAGES:
        with suppress(PackageNotFoundError):
            versions[name] = version(name)

    cpu = _cpu_info("model name") or platform.processor() or platform.machine()
    return {
        "device": torch.cuda.get_device_name() if device == "cuda" else cpu,
        # CPUs of one name may round differently.
        "cpu": _cpu_info("vendor_id", "cpu family", "model") or platform.machine(),
        "torch": torch.__version__,
        "num_threads": torch.get_num_threads(),
        "git": git,
        "rope_exp": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "num_cores": num_cores(),
        "versions": versions,
    }


def environment_text(value: Any) -> str:
    """Return a value of env.json as readable text.

    The state of git is the commit's first digits, with + if the code was changed since.
    """
    if isinstance(value, dict):
        changed = "+" if value.get("dirty") else ""
        return f"{value.get('commit')!s:.10}{changed}"
    return str(value)


def git_state(config_dir: Path | None = None) -> dict[str, Any] | None:
    """Return the commit of this checkout, and whether its code was changed since (`dirty`).

    Args:
        config_dir: a user's folder of configs, which counts as code if it lies in the checkout.
    Returns:
        None if this package is not a checkout of its own: an installed copy may lie within
        somebody else's repository.
    Raises:
        ConfigError: git cannot name the commit of a checkout.
    """
    if not os.path.lexists(ROOT / ".git"):
        return None
    # Regardless of a repository in the environment, and of others above this one.
    environment = {key: os.environ[key] for key in os.environ if not key.startswith("GIT_")}
    environment["GIT_CEILING_DIRECTORIES"] = str(ROOT.parent)
    git = functools.partial(output_of, "git", "-C", str(ROOT), env=environment)
    try:
        code = [*CODE]
        if config_dir is not None and config_dir.resolve().is_relative_to(ROOT):
            code.append(str(config_dir.resolve()))
        # Count new files, whatever the user's settings are.
        status = git("status", "--porcelain", "--untracked-files=normal", "--", *code)
        return {"commit": git("rev-parse", "HEAD"), "dirty": bool(status)}
    except ChildProcessError as error:
        why = str(error).removeprefix("git: ")
        raise ConfigError("git", ..., f"cannot say which commit {ROOT} is at: {why}") from None


def free_port() -> int:
    """Return a port of this machine that no process has now."""
    with socket.create_server(("localhost", 0)) as probe:
        port: int = probe.getsockname()[1]
    return port


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
