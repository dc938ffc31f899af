"""What this machine could do: the rates of its products of matrices and of its memory, and a step's floor from them."""

import functools
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from rope_exp.config import costs as flops
from rope_exp.config.run import RunConfig

SQUARE = {"cpu": 2048, "cuda": 8192}
COPY_BYTES = {"cpu": 2**28, "cuda": 2**31}
SECONDS = 1.0  # of measuring, each


def limits(device: str) -> dict[str, Any]:
    """matmul_flops_per_s by dtype, the best of large squares; copy_bytes_per_s, reads and writes counted."""
    size = SQUARE[device]
    rates = {}
    for name, dtype in (("bf16", torch.bfloat16), ("fp32", torch.float32)):
        a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
        out = torch.empty_like(a)
        product = functools.partial(torch.mm, a, b, out=out)
        rates[name] = 2 * size**3 / _seconds(product, device)
    source = torch.ones(COPY_BYTES[device] // 4, device=device)
    target = torch.empty_like(source)
    copy = 2 * COPY_BYTES[device] / _seconds(lambda: target.copy_(source), device)
    return {
        "num_threads": torch.get_num_threads(),
        "square": size,
        "matmul_flops_per_s": rates,
        "copy_bytes_per_s": copy,
    }


def floor(config: RunConfig, vocab_size: int, measured: dict[str, Any]) -> dict[str, float]:
    """The least time of a step, in seconds: its products (MFU's count: weights, and causal attention) at the measured
    rate of large ones, and AdamW's seven passes over the weights in float32 at the measured copy rate.

    What is pointwise (norms, rotation, softmax, SwiGLU) is not counted: fused without end, it would cost nothing.
    """
    train = config.train
    tokens = train.global_batch_size * train.seq_len
    products = (
        tokens
        * flops.flops_per_token(config, vocab_size)
        / measured["matmul_flops_per_s"][train.precision]
    )
    update = (
        7 * 4 * flops.num_parameters(config.architecture(vocab_size)) / measured["copy_bytes_per_s"]
    )
    return {"products_s": products, "update_s": update, "floor_s": products + update}


def _seconds(function: Callable[[], object], device: str) -> float:
    """The median of calls, each waited for."""

    def once() -> float:
        started = time.perf_counter()
        function()
        if device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - started

    for _ in range(3):
        once()
    times: list[float] = []
    while len(times) < 5 or sum(times) < SECONDS:
        times.append(once())
    return statistics.median(times)
