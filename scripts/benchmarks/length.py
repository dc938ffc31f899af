"""Cost of a layer of attention by length: time of a pass forward and backward, and memory."""

import ctypes
import shlex
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks import ours
from benchmarks.setting import Bench
from rope_exp.model.attention.base import Attention
from rope_exp.model.positions import Positions
from rope_exp.system.console import log
from rope_exp.system.errors import ConfigError

LENGTHS = (256, 512, 1024, 2048, 4096, 8192)


def length(bench: Bench, model: str) -> dict[str, Any]:
    """Time one layer of each --arm, forward and backward, and its memory, by the text's length.

    Returns:
        By arm, for each length: the median seconds, and the peak bytes of a pass above those before
        it; None if the system does not tell.
    """
    words = bench.options.arms
    if not words:
        raise ConfigError("--arm", ..., "say at least one, such as --arm attn=retention")
    found: dict[str, dict[str, Any]] = {each: {"pass_s": [], "peak_bytes": []} for each in words}
    layers = {each: _Layer(bench, model, each) for each in words}
    for num_tokens in LENGTHS:
        log(f"  {num_tokens:,} tokens")
        seconds: dict[str, list[float]] = {each: [] for each in layers}
        for each, layer in layers.items():
            layer.take(num_tokens)
            found[each]["peak_bytes"].append(_peak(bench, layer, num_tokens))
        for _ in range(bench.rounds):
            for each, layer in layers.items():
                start = time.perf_counter()
                layer.take(num_tokens)
                seconds[each].append(time.perf_counter() - start)
        for each, own in seconds.items():
            found[each]["pass_s"].append(statistics.median(own))
    return {"lengths": LENGTHS, "arms": found}


class _Layer:
    """The first layer's attention of an arm, in its training precision, not compiled."""

    def __init__(self, bench: Bench, model: str, words: str) -> None:
        config = ours.settled(bench.words(model, *shlex.split(words)))
        vocab_size = config.tokenizer.known_vocab_size or 2048
        decoder = ours.decoder(config, vocab_size).to(bench.device)
        found = [module for module in decoder.modules() if isinstance(module, Attention)]
        self.attention = found[0]
        self.rotary = decoder.model.rotary_emb
        self.width = config.model.hidden_size
        self.device = bench.device
        bf16 = config.train.precision == "bf16"
        self.autocast = torch.autocast(bench.device, torch.bfloat16, enabled=bf16)

    def take(self, num_tokens: int) -> None:
        """Pass forward and backward over one text."""
        at: Positions = self.rotary(torch.arange(num_tokens, device=self.device))[0]
        x_BTD = torch.zeros(1, num_tokens, self.width, device=self.device, requires_grad=True)
        with self.autocast:
            o_BTD: Tensor = self.attention(x_BTD, at)
        o_BTD.sum().backward()  # type: ignore[no-untyped-call]
        if self.device == "cuda":
            torch.cuda.synchronize()


# -- memory ----------------------------------------------------------------------------------------


def _peak(bench: Bench, layer: _Layer, num_tokens: int) -> int | None:
    """Return the peak bytes of a pass above those before it; None if the system does not tell."""
    if bench.device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        layer.take(num_tokens)
        return torch.cuda.max_memory_allocated() - before

    forget = Path("/proc/self/clear_refs")
    if not forget.exists():
        return None
    # Return freed memory to the system first; reuse of it would not be seen.
    ctypes.CDLL(None).malloc_trim(0)
    # 5: reset the peak resident set size (proc(5)).
    forget.write_text("5", encoding="ascii")
    before = _kilobytes("VmRSS")
    layer.take(num_tokens)
    return 1024 * (_kilobytes("VmHWM") - before)


def _kilobytes(key: str) -> int:
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    [line] = [line for line in lines if line.startswith(f"{key}:")]
    return int(line.split()[1])
