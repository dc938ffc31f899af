"""Training speed: tokens per second and MFU, excluding compilation, evaluation and saving."""

import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from rope_exp.plan.costs import peak_flops_per_s as listed_peak_flops_per_s
from rope_exp.system.console import log

WARMUP_STEPS = 10  # excluded from a run's speed: compilation, first memory accesses


class Speed(NamedTuple):
    """Speed of some steps; None before any was timed. MFU is None if the peak is unknown."""

    tokens_per_s: float | None
    mfu: float | None


@dataclass
class Throughput:
    """Times steps from the end of one to the end of the next, except the step after a pause.

    Steps of all sequence lengths count equally: medians are over seconds per token and seconds per
    operation.

    Attributes:
        flops_per_token: the numerator of MFU (rope_exp.plan.costs), by sequence length.
        peak_flops_per_s: of all ranks' devices together; None: MFU is None. It becomes None once
            it proves wrong.
    """

    flops_per_token: Mapping[int, int]
    peak_flops_per_s: float | None
    _of_tokens: list[float] = field(default_factory=list)
    _of_flops: list[float] = field(default_factory=list)
    _shares: list[float] = field(default_factory=list)
    _last_end: float | None = None
    _last_cpu: float = 0.0

    def step(self, num_tokens: int, seq_len: int) -> None:
        """Record the end of a step, with its tokens over all ranks and its sequence length."""
        now = time.perf_counter()
        cpu = time.process_time()
        if self._last_end is not None:
            seconds = now - self._last_end
            self._of_tokens.append(seconds / num_tokens)
            self._of_flops.append(seconds / (num_tokens * self.flops_per_token[seq_len]))
            self._shares.append((cpu - self._last_cpu) / max(seconds, 1e-9))
        self._last_end = now
        self._last_cpu = cpu

    def pause(self) -> None:
        """Exclude the time until the next step ends."""
        self._last_end = None

    def recent(self, num_steps: int) -> Speed:
        """Return the median over the last `num_steps` timed steps."""
        return self._speed(slice(-num_steps, None))

    def overall(self) -> Speed:
        """Return the median over all steps after warm-up, or over all steps of a shorter run."""
        is_long = len(self._of_tokens) > WARMUP_STEPS
        return self._speed(slice(WARMUP_STEPS if is_long else 0, None))

    def num_cores(self, num_steps: int) -> float | None:
        """Return the median CPU time per time over the last `num_steps`; None before warm-up."""
        if len(self._shares) < WARMUP_STEPS:
            return None
        return statistics.median(self._shares[-num_steps:])

    def _speed(self, part: slice) -> Speed:
        of_tokens = self._of_tokens[part]
        if not of_tokens:
            return Speed(None, None)
        return Speed(
            tokens_per_s=1 / statistics.median(of_tokens),
            mfu=self._mfu(1 / statistics.median(self._of_flops[part])),
        )

    def _mfu(self, flops_per_s: float) -> float | None:
        """Return the share of the devices' dense bf16 peak that is used.

        A share above 1 shows that the peak or the count of operations is wrong. A warning is
        logged once, and MFU is None from then on.
        """
        if self.peak_flops_per_s is None:
            return None

        mfu = flops_per_s / self.peak_flops_per_s
        if mfu > 1:
            log(
                f"warning: MFU {mfu:.0%}: the peak of this device (train.peak_tflops) or the "
                "count of operations is wrong; MFU is null from here on"
            )
            self.peak_flops_per_s = None
            return None
        return mfu


def peak_flops_per_s(device: torch.device, count: int, given_tflops: float | None) -> float | None:
    """Return the dense bf16 peak of a run's devices; None if unknown, and on a CPU.

    Args:
        device: one of `count` identical devices.
        given_tflops: the config's peak of one device; 0: unknown; None: use the table of peaks.
    """
    if device.type != "cuda":
        return None
    peak = listed_peak_flops_per_s(torch.cuda.get_device_name(device))
    if given_tflops is not None:
        peak = given_tflops * 1e12
    return peak * count if peak else None
