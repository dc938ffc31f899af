"""Where a step's time goes, by torch's profiler: sums of the kernels' own time, by kind."""

from typing import Any

import torch
from torch._C._autograd import DeviceType

from rope_exp.config.run import RunConfig
from rope_exp.model.decoder import Decoder
from rope_exp.training.optim import build_optimizer
from rope_exp.training.worker import set_up_process

STEPS = 5
# The first kind whose word is in a kernel's name; the rest is "other". On a CPU attention's products are batched ones.
KINDS = {
    "fused pointwise": ("cpp_fused", "triton_"),
    "attention": ("flash", "fmha", "attention", "sdpa", "aten::bmm"),
    "optimizer": ("adam", "multi_tensor", "foreach", "linalg_vector_norm"),
    "products": ("aten::mm", "aten::addmm", "gemm", "nvjet", "cutlass", "xmma"),
    "copies": ("memcpy", "memset"),
}


def breakdown(config: RunConfig, vocab_size: int) -> dict[str, Any]:
    """shares: of the time in kernels, by kind; top: the kernels that take most, in ms a step."""
    set_up_process(config)
    torch._inductor.config.cpp.enable_kernel_profile = True
    device, train = torch.device(config.launch.device), config.train
    model = Decoder(config.architecture(vocab_size))
    model.initialise(0)
    model.to(device).compile_parts()
    optimizer = build_optimizer(model.parameters(), config.optim)
    generator = torch.Generator().manual_seed(0)
    ids_BT = torch.randint(
        vocab_size, (train.global_batch_size, train.seq_len + 1), generator=generator
    ).to(device)

    def step() -> None:
        for micro in torch.split(ids_BT, train.micro_batch_size or train.global_batch_size):
            with torch.autocast(device.type, torch.bfloat16, enabled=train.precision == "bf16"):
                loss = model(micro[:, :-1], micro[:, 1:]) / ids_BT[:, 1:].numel()
            loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), config.optim.grad_clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    for _ in range(4):
        step()
    with torch.profiler.profile() as profile:
        for _ in range(STEPS):
            step()
        if device.type == "cuda":
            torch.cuda.synchronize()
    on_gpu = device.type == "cuda"
    key = "self_device_time_total" if on_gpu else "self_cpu_time_total"
    # On a GPU the kernels alone: what called them is listed beside them, with their time.
    kernels = [
        event
        for event in profile.key_averages()
        if not on_gpu or (event.device_type == DeviceType.CUDA and not event.is_user_annotation)
    ]
    times = {
        event.key: getattr(event, key) / 1e3 / STEPS for event in kernels if getattr(event, key) > 0
    }
    total = sum(times.values())
    shares = dict.fromkeys([*KINDS, "other"], 0.0)
    for name, milliseconds in times.items():
        shares[_kind(name)] += milliseconds / total
    top = sorted(times.items(), key=lambda item: -item[1])[:15]
    return {"shares": shares, "ms_a_step": total, "top_ms": dict(top)}


def _kind(kernel: str) -> str:
    return next(
        (kind for kind, words in KINDS.items() if any(word in kernel.lower() for word in words)),
        "other",
    )
