"""Breaks ranks of runs if it is on PYTHONPATH, by SABOTAGE=<pe>:<rank>:<step>:<what>,...

PATIENCE_S=<seconds> replaces the heartbeat's patience.
"""

import math
import os
import resource
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

if "PATIENCE_S" in os.environ and "ROPE_EXP_DISPATCHER" in os.environ:
    from rope_exp import parallel as group

    group.PATIENCE = timedelta(seconds=float(os.environ["PATIENCE_S"]))

if "SABOTAGE" in os.environ and "ROPE_EXP_DISPATCHER" in os.environ:
    rank = os.environ.get("RANK", "0")
    harms = {}  # the kind of harm, by variant and step
    for harm in os.environ["SABOTAGE"].split(","):
        pe, of_rank, at, kind = harm.split(":")
        if of_rank == rank:
            harms[pe, int(at)] = kind

    if harms:
        import torch

        from rope_exp.step import TrainingStep

        healthy = TrainingStep.__call__

        def train_step(self: Any, step: int) -> Any:
            """Take a training step, and break it if SABOTAGE names it."""
            what = harms.get((self.config.pe.label, step))
            if what is None:
                return healthy(self, step)
            if what == "raise":
                raise RuntimeError(f"sabotage of process {rank}")
            if what == "busy":
                time.sleep(12)
                return healthy(self, step)
            if what == "memory":
                used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
                resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20), -1))
                torch.ones(1 << 34)  # far more than the process has kept of freed memory
            hook = self.decoder.lm_head.weight.register_hook(lambda gradient: gradient * math.nan)
            try:
                return healthy(self, step)
            finally:
                hook.remove()

        TrainingStep.__call__ = train_step  # type: ignore[method-assign]
