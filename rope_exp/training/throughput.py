"""How fast training goes: tokens per second and MFU, without compiling, evaluation and saving."""

import statistics
import time
from dataclasses import dataclass, field

import torch

from rope_exp.config.costs import peak_flops_per_s as listed_peak_flops_per_s
from rope_exp.system.console import log

WARMUP_STEPS = 10  # left out of a run's rate: compiling, first touches


@dataclass
class Throughput:
    """Times steps from the end of one to the end of the next; a pause leaves the step after it out.

    Attributes:
        tokens_per_step: of all ranks.
        flops_per_token: the numerator of MFU (rope_exp.config.costs).
        peak_flops_per_s: of all ranks' devices; None: MFU is None. None also from the time when
            it has proved to be wrong.
    """

    tokens_per_step: int
    flops_per_token: int
    peak_flops_per_s: float | None
    _seconds: list[float] = field(default_factory=list)
    _last_end: float | None = None

    def step(self) -> None:
        """Note that a step has ended."""
        now = time.perf_counter()
        if self._last_end is not None:
            self._seconds.append(now - self._last_end)
        self._last_end = now

    def pause(self) -> None:
        """Note that something follows which is no training."""
        self._last_end = None

    def recent(self, num_steps: int) -> float | None:
        """Return tokens per second, the median over the last steps; None before any was timed."""
        return self._rate(self._seconds[-num_steps:])

    def overall(self) -> float | None:
        """Return tokens per second, the median over all steps after warm-up.

        Of a run shorter than the warm-up, the median over the steps that there are.
        """
        return self._rate(self._seconds[WARMUP_STEPS:] or self._seconds)

    def mfu(self, tokens_per_s: float | None) -> float | None:
        """Return the share of the devices' dense bf16 peak that `tokens_per_s` uses.

        A share above 1 shows that the peak or the count of operations is wrong: a warning says
        so once, and MFU is None from then on.
        """
        if self.peak_flops_per_s is None or tokens_per_s is None:
            return None

        mfu = tokens_per_s * self.flops_per_token / self.peak_flops_per_s
        if mfu > 1:
            log(
                f"warning: MFU {mfu:.0%}: the peak of this device (train.peak_tflops) or the "
                "count of operations is wrong; MFU is null from here on"
            )
            self.peak_flops_per_s = None
            return None
        return mfu

    def _rate(self, seconds: list[float]) -> float | None:
        return self.tokens_per_step / statistics.median(seconds) if seconds else None


def peak_flops_per_s(device: torch.device, count: int, given_tflops: float | None) -> float | None:
    """Return the dense bf16 peak of a run's devices; None where nobody knows it, and on a CPU.

    Args:
        device: one of `count` alike.
        given_tflops: what the config says of one; 0: nothing; None: what the table of peaks says.
    """
    if device.type != "cuda":
        return None
    peak = listed_peak_flops_per_s(torch.cuda.get_device_name(device))
    if given_tflops is not None:
        peak = given_tflops * 1e12
    return peak * count if peak else None
