"""How fast training goes: tokens per second and MFU, without compiling, evaluation and saving."""

import statistics
import time

from rope_exp.config.costs import peak_flops_per_s
from rope_exp.system.errors import ConfigError

WARMUP_STEPS = 10  # left out of a run's rate: compiling, first touches


class Throughput:
    """Times steps from the end of one to the end of the next; a pause leaves the step after it out.

    Args:
        tokens_per_step: of all processes.
        flops_per_token: the numerator of MFU (rope_exp/flops.py).
        peak_flops_per_s: of all processes' devices; None: no MFU is recorded.
    """

    def __init__(
        self, tokens_per_step: int, flops_per_token: int, peak_flops_per_s: float | None
    ) -> None:
        self._tokens, self._flops, self._peak = tokens_per_step, flops_per_token, peak_flops_per_s
        self._seconds: list[float] = []
        self._last_end: float | None = None

    def step(self) -> None:
        """A step has ended."""
        now = time.perf_counter()
        if self._last_end is not None:
            self._seconds.append(now - self._last_end)
        self._last_end = now

    def pause(self) -> None:
        """Something that is no training follows."""
        self._last_end = None

    def recent(self, num_steps: int) -> float | None:
        """Tokens per second, the median over the last steps; None before any was timed."""
        return self._rate(self._seconds[-num_steps:])

    def overall(self) -> float | None:
        """Tokens per second, the median over all steps after warm-up; of a short run, over those there are."""
        return self._rate(self._seconds[WARMUP_STEPS:] or self._seconds)

    def mfu(self, tokens_per_s: float | None) -> float | None:
        """The share of the devices' dense bf16 peak that `tokens_per_s` uses."""
        if self._peak is None or tokens_per_s is None:
            return None
        mfu = tokens_per_s * self._flops / self._peak
        assert mfu <= 1, (
            f"MFU {mfu:.0%}: the peak of this device or the count of operations is wrong"
        )
        return mfu

    def _rate(self, seconds: list[float]) -> float | None:
        return self._tokens / statistics.median(seconds) if seconds else None


def gpu_peak_flops_per_s(device_name: str, given_tflops: float | None) -> float | None:
    """A GPU's dense bf16 peak: from the config where it says so (0: None, no MFU), else from the table.

    Raises:
        ConfigError: the config says nothing and the table does not hold this device.
    """
    if given_tflops is not None:
        return given_tflops * 1e12 or None
    peak = peak_flops_per_s(device_name)
    if peak is None:
        allowed = f"the dense bf16 peak of {device_name} is not known; give it in TFLOP/s, or 0 to record no MFU"
        raise ConfigError("train.peak_tflops", None, allowed)
    return peak
