"""Limits of this machine, the least time of a step by them, and a profile of a step."""

import functools
from typing import Any

import torch
from torch import Tensor
from torch._C._autograd import DeviceType
from torch.utils.benchmark import Timer

from benchmarks import ours
from benchmarks.setting import Bench

SQUARE = {"cpu": 2048, "cuda": 8192}
COPY_BYTES = {"cpu": 2**28, "cuda": 2**31}
SECONDS = 1.0  # of each measurement

STEPS = 5  # of the profile
# A kernel has the first kind with a word in its name, or else is "other". On a CPU the products of
# attention are the batched ones.
KINDS = {
    "fused pointwise": ("cpp_fused", "triton_"),
    "attention": ("flash", "fmha", "attention", "sdpa", "aten::bmm"),
    "optimizer": ("adam", "multi_tensor", "foreach", "linalg_vector_norm"),
    "products": ("aten::mm", "aten::addmm", "gemm", "nvjet", "cutlass", "xmma"),
    "copies": ("memcpy", "memset"),
}


@functools.cache
def limits(bench: Bench, model: str) -> dict[str, Any]:
    """Measure products of large square matrices, by dtype, and copies, counting reads and writes.

    Returns:
        num_threads, square, matmul_flops_per_s (bf16, fp32), copy_bytes_per_s.
    """
    device = bench.device
    size = SQUARE[device]
    rates = {}
    for name, dtype in (("bf16", torch.bfloat16), ("fp32", torch.float32)):
        a = torch.randn(size, size, device=device).to(dtype)
        b = torch.randn(size, size, device=device).to(dtype)
        seconds = _seconds("torch.mm(a, b, out=out)", a=a, b=b, out=torch.empty_like(a))
        rates[name] = 2 * size**3 / seconds

    source = torch.ones(COPY_BYTES[device] // 4, device=device)
    seconds = _seconds("target.copy_(source)", source=source, target=torch.empty_like(source))
    return {
        "num_threads": torch.get_num_threads(),
        "square": size,
        "matmul_flops_per_s": rates,
        "copy_bytes_per_s": 2 * COPY_BYTES[device] / seconds,
    }


def _seconds(statement: str, **names: Any) -> float:
    timer = Timer(statement, globals=names | {"torch": torch}, num_threads=torch.get_num_threads())
    return timer.blocked_autorange(min_run_time=SECONDS).median


def floor(bench: Bench, spec: ours.Spec, cost: dict[str, int]) -> dict[str, float]:
    """Return the least time of a step, in seconds.

    It is the time of its products (MFU's count: weights, and causal attention) at the measured rate
    of large ones, plus AdamW's seven passes over the weights in float32 at the rate of copies.
    Pointwise work (norms, rotation, softmax, SwiGLU) would cost nothing if it were all fused.
    """
    known = limits(bench, bench.models[0])
    rate = known["matmul_flops_per_s"]["bf16" if spec["bf16"] else "fp32"]
    products = spec["tokens_per_step"] * cost["flops_per_token"] / rate
    update = 7 * 4 * cost["params"] / known["copy_bytes_per_s"]
    return {"products_s": products, "update_s": update, "floor_s": products + update}


def breakdown(bench: Bench, model: str) -> dict[str, Any]:
    """Profile a few steps.

    Returns:
        shares: of the time in kernels, by kind; ms_a_step: that time; top_ms: the kernels that take
        the most of it.
    """
    on_gpu = bench.device == "cuda"
    torch._inductor.config.cpp.enable_kernel_profile = True
    spec = ours.spec_of(bench.words(model))
    learner = ours.Learner(ours.settled(spec["words"]), spec["vocab_size"])
    micro_batches = torch.split(random_ids(spec, spec["batch"]).to(bench.device), spec["micro"])
    for _ in range(4):
        learner.step(micro_batches)

    with torch.profiler.profile() as profile:
        for _ in range(STEPS):
            learner.step(micro_batches)
        if on_gpu:
            torch.cuda.synchronize()

    times: dict[str, float] = {}
    for event in profile.key_averages():
        # On a GPU, the caller of a kernel is listed too, with the kernel's time.
        if not on_gpu:
            times[event.key] = event.self_cpu_time_total / 1e3 / STEPS
        elif event.device_type == DeviceType.CUDA and not event.is_user_annotation:
            times[event.key] = event.self_device_time_total / 1e3 / STEPS

    total = sum(times.values())
    shares = dict.fromkeys([*KINDS, "other"], 0.0)
    for name, milliseconds in times.items():
        shares[_kind(name)] += milliseconds / total
    top = sorted(times.items(), key=lambda item: -item[1])[:15]
    return {"shares": shares, "ms_a_step": total, "top_ms": dict(top)}


def _kind(kernel: str) -> str:
    for kind, words in KINDS.items():
        if any(word in kernel.lower() for word in words):
            return kind
    return "other"


def random_ids(spec: ours.Spec, rows: int) -> Tensor:
    """Return random windows of T + 1 ids, always the same."""
    size = (rows, spec["seq_len"] + 1)
    return torch.randint(spec["vocab_size"], size, generator=torch.Generator().manual_seed(0))
