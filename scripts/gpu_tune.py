"""Measure training steps on one GPU, to choose how to train there: FOLDER/tune.json.

    python scripts/gpu_tune.py --out FOLDER

A setting is the rows of a micro-batch, the attention backend, and the launch of a step: eager,
compiled, or as one CUDA graph. A setting that fails or has too little memory is recorded, and the
next one is tried. Results are written one by one; a repeated command skips the settings that were
measured, and tries those again that failed.
"""

import argparse
import gc
import itertools
import sys
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch._functorch.config as functorch
from torch.nn.attention import SDPBackend, sdpa_kernel

from rope_exp.compose import resolve, run_config
from rope_exp.config import RunConfig
from rope_exp.corpus import Prepared
from rope_exp.costs import flops_per_token, peak_flops_per_s, vocabulary
from rope_exp.decoder import Decoder
from rope_exp.errors import EXIT_DONE, EXIT_FAILED, EXIT_STOPPED, first_line, log
from rope_exp.files import read_json, write_json
from rope_exp.machine import machine_environment
from rope_exp.parallel import Parallel
from rope_exp.step import TrainingStep

BACKENDS = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION}
# Rows of a step; with a preset's own batch, one step would take seconds.
BATCH = {"125m": 64, "1b": 16, "10m": 32, "nano": 16}
# Rows of a micro-batch, attention, launch, and the rotated sites unless they are q and k; the most
# informative first.
SETTINGS: dict[str, list[tuple[Any, ...]]] = {
    "125m": [
        (32, "cudnn", "compiled"),
        (32, "cudnn", "graph"),
        (32, "cudnn", "compiled", ""),
        (32, "cudnn", "compiled", "qkvo"),
        (32, "flash", "compiled"),
        (8, "cudnn", "eager"),
        (8, "cudnn", "compiled"),
        (64, "cudnn", "compiled"),
        (8, "cudnn", "graph"),
    ],
    "1b": [(8, "cudnn", "compiled"), (8, "flash", "compiled"), (16, "cudnn", "compiled")],
    "10m": [
        (32, "cudnn", "graph"),
        (32, "cudnn", "compiled"),
        (32, "flash", "graph"),
        (16, "cudnn", "graph"),
    ],
    "nano": [(16, "cudnn", "graph"), (16, "cudnn", "compiled"), (16, "flash", "graph")],
}
WARM_UP = 4  # steps, of which the first ones compile and capture
NEVER = 10**9  # a step that no measurement reaches
EACH_S = 1.5  # seconds of a measurement


@dataclass(frozen=True)
class Setting:
    """One way to train a model; `overrides` are separated by spaces."""

    model: str
    rows: int
    attention: str
    launch: str
    rotate: str = "qk"
    overrides: str = ""


class Loop:
    """The steps of a run. Each is read after the next is launched, as a run on a GPU does.

    Args:
        config: of the run, resolved.
        decoder: on the device of the run, with its initial weights.
        data: gives the batches: a `Prepared` corpus or a task.
    """

    def __init__(self, config: RunConfig, decoder: Decoder, data: Any) -> None:
        if config.train.compile:
            decoder.compile_parts()
        parallel = Parallel(config.launch.device, config.train.precision, 1)
        self.step = TrainingStep(config, decoder, data, parallel, should_stop=lambda: False)
        self.num_done = 0

    def take(self, count: int) -> tuple[list[float], float]:
        """Take `count` steps; return their losses, and the mean seconds of a step."""
        began = time.perf_counter()
        reads: list[Any] = []
        losses = []
        for _ in range(count):
            self.num_done += 1
            reads.append(self.step(self.num_done))
            if len(reads) > 1:
                losses.append(reads.pop(0)().loss)
        losses.append(reads.pop()().loss)
        return losses, (time.perf_counter() - began) / count


def measured(setting: Setting, device: str) -> dict[str, Any]:
    """Return the measurement of a setting, on random tokens."""
    overrides = [
        f"model={setting.model}",
        f"pe.rotate=[{','.join(setting.rotate)}]",
        f"train.global_batch_size={BATCH[setting.model]}",
        f"train.micro_batch_size={setting.rows}",
        f"train.compile={str(setting.launch != 'eager').lower()}",
        f"train.num_steps={NEVER}",
        "train.precision=bf16",
        f"launch.device={device}",
    ]
    config = resolve(run_config([*overrides, *setting.overrides.split()]))
    vocab_size = vocabulary(config)
    ids = np.random.default_rng(0).integers(vocab_size, size=2**24, dtype=np.uint32)
    data = Prepared(vocab_size, "", {"end_id": 0}, "", len(ids), Path(), {"train": ids})
    torch.manual_seed(0)
    with torch.device(device):
        decoder = Decoder(config.architecture(vocab_size))
    for parameter in decoder.parameters():
        # `initialise` draws on the CPU, which takes long at 1b.
        if parameter.ndim == 2:
            torch.nn.init.normal_(parameter, std=0.02)

    loop = Loop(config, decoder, data)
    if setting.launch != "graph":
        loop.step.graphs = None
    with sdpa_kernel(BACKENDS[setting.attention]):
        losses, _ = loop.take(WARM_UP)
        if setting.launch == "graph" and loop.step.graphs is None:
            raise RuntimeError("the steps make no graph")
        _, once = loop.take(1)
        _, step_s = loop.take(max(3, round(EACH_S / once)))

    tokens_per_s = config.train.tokens_per_step / step_s
    row = {"step_s": step_s, "losses": losses, "tokens_per_s": tokens_per_s}
    if device == "cuda":
        row["peak_bytes"] = torch.cuda.max_memory_allocated()
        peak = peak_flops_per_s(torch.cuda.get_device_name())
        if peak:
            row["mfu"] = tokens_per_s * flops_per_token(config, vocab_size) / peak
    return row


def tune(settings: list[Setting], options: argparse.Namespace) -> int:
    """Measure settings until the time is over; return 75 if some are left."""
    path = options.out / "tune.json"
    end = time.monotonic() + options.seconds
    rows = read_json(path)["settings"] if path.exists() else []
    # A setting that failed is tried again.
    rows = [row for row in rows if "error" not in row]

    for setting in settings:
        if any(asdict(setting).items() <= row.items() for row in rows):
            continue
        if time.monotonic() > end:
            return EXIT_STOPPED
        try:
            row = measured(setting, options.device)
            log(f"{setting}: {row['tokens_per_s']:,.0f} tokens/s")
        except Exception as error:
            row = {"error": f"{type(error).__name__}: {first_line(error)}"}
            log(f"{setting}: {row['error']}")
        rows.append(asdict(setting) | row)
        write_json(path, {"on": machine_environment(options.device), "settings": rows})

        torch._dynamo.reset()
        gc.collect()
        if options.device == "cuda":
            torch.cuda.reset_peak_memory_stats()
            # After a failed capture, torch's allocator may refuse this.
            with suppress(RuntimeError):
                torch.cuda.empty_cache()
    return EXIT_FAILED if all("error" in row for row in rows) else EXIT_DONE


def main() -> int:
    """Run the command on this process's command line."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    add = parser.add_argument
    add("--device", default="cuda", help="(%(default)s)")
    add("--seconds", type=float, default=240.0, help="then start no other (%(default)s)")
    add("--out", type=Path, required=True)
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: there is no GPU here")

    options.out.mkdir(parents=True, exist_ok=True)
    # Its key does not tell attention backends apart: one would be measured as the other.
    functorch.enable_autograd_cache = False
    # The first setting of every model, then the second, so that each model has a result.
    listed = [[Setting(model, *row) for row in rows] for model, rows in SETTINGS.items()]
    rounds = itertools.chain.from_iterable(itertools.zip_longest(*listed))
    return tune([setting for setting in rounds if setting], options)


if __name__ == "__main__":
    sys.exit(main())
