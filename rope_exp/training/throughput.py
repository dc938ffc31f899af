"""How fast training goes: tokens per second and MFU, without compiling, evaluation and saving."""

import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from rope_exp.config.costs import peak_flops_per_s as listed_peak_flops_per_s
from rope_exp.system.console import log

WARMUP_STEPS = 10  # left out of a run's rate: compiling, first touches


class Speed(NamedTuple):
    """How fast steps were; None before any was timed, and MFU where nobody knows the peak."""

    tokens_per_s: float | None
    mfu: float | None


@dataclass
class Throughput:
    """Times steps from the end of one to the end of the next; a pause leaves the step after it out.

    Steps of several lengths count alike: a median is over the seconds that a token took, and over
    those that an operation took.

    Attributes:
        flops_per_token: the numerator of MFU (rope_exp.config.costs), by length.
        peak_flops_per_s: of all ranks' devices; None: MFU is None. None also from the time when
            it has proved to be wrong.
    """

    flops_per_token: Mapping[int, int]
    peak_flops_per_s: float | None
    _of_tokens: list[float] = field(default_factory=list)
    _of_flops: list[float] = field(default_factory=list)
    _last_end: float | None = None

    def step(self, num_tokens: int, seq_len: int) -> None:
        """Note that a step has ended: its tokens, of all ranks, and the length of its sequences."""
        now = time.perf_counter()
        if self._last_end is not None:
            seconds = now - self._last_end
            self._of_tokens.append(seconds / num_tokens)
            self._of_flops.append(seconds / (num_tokens * self.flops_per_token[seq_len]))
        self._last_end = now

    def pause(self) -> None:
        """Note that something follows which is no training."""
        self._last_end = None

    def recent(self, num_steps: int) -> Speed:
        """Return the median over the last steps."""
        return self._speed(slice(-num_steps, None))

    def overall(self) -> Speed:
        """Return the median over all steps after warm-up.

        Of a run shorter than the warm-up, the median over the steps that there are.
        """
        is_long = len(self._of_tokens) > WARMUP_STEPS
        return self._speed(slice(WARMUP_STEPS if is_long else 0, None))

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

        A share above 1 shows that the peak or the count of operations is wrong: a warning says
        so once, and MFU is None from then on.
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
