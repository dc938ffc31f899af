"""Measure training steps in a bare loop on one GPU, to choose how to train there.

    python scripts/gpu_tune.py --out FOLDER          # into FOLDER/tune.json
    python scripts/gpu_tune.py race --out FOLDER     # QK and QKVO against NoPE: FOLDER/race.json

A setting is the rows of a micro-batch, the attention backend, and the launch of a step: eager,
compiled, or one CUDA graph of the compiled step (zeroing, all micro-batches, clipping, AdamW). A
setting that fails or has too little memory is recorded, and the next one is tried. A step in which
the host waits for the device fails. Results are written one by one; a repeated command skips them.

Shapes: B rows of a step, W = sequence length + 1.
"""

import argparse
import contextlib
import gc
import itertools
import sys
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import quantiles
from typing import Any

import torch
import torch._functorch.config as functorch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from rope_exp.compose import run_config
from rope_exp.costs import flops_per_token, peak_flops_per_s
from rope_exp.decoder import Decoder
from rope_exp.errors import EXIT_DONE, EXIT_FAILED, EXIT_STOPPED, first_line, log
from rope_exp.files import read_json, write_json
from rope_exp.plan.tables import vocabulary
from rope_exp.provenance import machine_facts

BACKENDS = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION}
# Rows of a step; with a preset's own batch, one step would take seconds.
BATCH = {"125m": 64, "1b": 16, "10m": 32, "nano": 16}
# Rows of a micro-batch, attention and launch; the most informative first.
SETTINGS = {
    "125m": [
        (32, "cudnn", "compiled"),
        (32, "cudnn", "graph"),
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
# The highest MFU that arithmetic and memory traffic of a compiled step allow on an H200
# (docs/performance.md). Other cards are compared with it, too.
ROOF = {"1b": 0.53, "125m": 0.43, "10m": 0.26}
ROTATIONS = ("", "qk", "qkvo")
WARM_UP = 3  # steps


@dataclass(frozen=True)
class Setting:
    """One way to train a model; `overrides` are further words of its config."""

    model: str
    rows: int
    attention: str
    launch: str
    rotate: str = "qk"
    overrides: str = ""

    def __str__(self) -> str:
        words = f"{self.model}, {self.rows} rows, {self.attention}, {self.launch}"
        return f"{words}, {self.rotate or 'nope'}"


class Step:
    """A training step on random tokens: compiled, warmed up and captured."""

    def __init__(self, setting: Setting, device: str) -> None:
        batch = [f"train.global_batch_size={BATCH[setting.model]}", "train.micro_batch_size=null"]
        words = [f"model={setting.model}", f"pe.rotate=[{','.join(setting.rotate)}]", *batch]
        config = run_config([*words, *setting.overrides.split()])
        vocab_size = vocabulary(config)
        self.setting = setting
        self.device = device
        self.num_tokens = config.train.global_batch_size * config.train.seq_len
        self.flops_per_token = flops_per_token(config, vocab_size)

        with torch.device(device):
            self.decoder = Decoder(config.architecture(vocab_size))
        self.grads: list[Tensor] = []
        generator = torch.Generator(device).manual_seed(0)
        for parameter in self.decoder.parameters():
            # `initialise` draws on the CPU, which takes long at 1b.
            if parameter.ndim == 2:
                torch.nn.init.normal_(parameter, std=0.02, generator=generator)
            parameter.grad = torch.zeros_like(parameter)
            self.grads.append(parameter.grad)
        if setting.launch != "eager":
            self.decoder.compile_parts()

        self.optimizer = torch.optim.AdamW(
            self.decoder.parameters(),
            lr=torch.tensor(1e-4, device=device),
            fused=True,
            capturable=device == "cuda",
        )
        shape = (config.train.global_batch_size, config.train.seq_len + 1)
        self.ids_BW = torch.randint(vocab_size, shape, device=device, generator=generator)
        self.loss = torch.zeros((), device=device)
        self.take = self._launch
        self.losses = self._warm_up()

    def _warm_up(self) -> list[float]:
        """Take steps until the next one can be timed, and return their losses.

        The last step may not wait for the device. If there is a graph, it is taken by the graph,
        so its loss must be that of the same step without one.
        """
        uses_graph = self.setting.launch == "graph"
        # What a graph captures must have run before on a stream other than the default one.
        stream: Any = contextlib.nullcontext()
        if uses_graph:
            stream = torch.cuda.stream(torch.cuda.Stream())  # type: ignore[no-untyped-call]
        losses = []
        self.wait()
        with stream:
            for _ in range(WARM_UP):
                self.take()
                losses.append(self.loss.item())
        self.wait()

        if uses_graph:
            graph = torch.cuda.CUDAGraph()
            # To collect compiled kernels during a capture would unload them, which is illegal then.
            gc.collect()
            gc.disable()
            try:
                with torch.cuda.graph(graph):
                    self._launch()
            finally:
                gc.enable()
            self.take = graph.replay
        if self.device == "cuda":
            torch.cuda.set_sync_debug_mode("error")
        self.take()
        if self.device == "cuda":
            torch.cuda.set_sync_debug_mode("default")
        return [*losses, self.loss.item()]

    def _launch(self) -> None:
        torch._foreach_zero_(self.grads)
        loss = torch.zeros((), device=self.device)
        for ids_BW in torch.split(self.ids_BW, self.setting.rows):
            # A context can be entered only once.
            backend = sdpa_kernel(BACKENDS[self.setting.attention])
            with backend, torch.autocast(self.device, torch.bfloat16):
                nats = self.decoder(ids_BW[:, :-1], ids_BW[:, 1:]) / self.num_tokens
            nats.backward()
            loss += nats.detach()

        norm = torch.nn.utils.clip_grad_norm_(self.decoder.parameters(), 1.0)
        # As in training, AdamW leaves out a step that is not finite.
        is_bad = ~(loss.isfinite() & norm.isfinite())
        self.optimizer.found_inf = is_bad.float()  # type: ignore[attr-defined]
        self.optimizer.step()
        self.loss.copy_(loss)

    def wait(self) -> None:
        """Wait for the device."""
        if self.device == "cuda":
            torch.cuda.synchronize()

    def measure(self, seconds: float) -> dict[str, float]:
        """Return the seconds of a step, and those in which the host launches it."""
        self.wait()
        began = time.perf_counter()
        host_s = 0.0
        count = 0
        while count < 3 or time.perf_counter() - began < seconds:
            called = time.perf_counter()
            self.take()
            host_s += time.perf_counter() - called
            count += 1
            # Otherwise the host would run far ahead of the device, and past `seconds`.
            if count % 8 == 0:
                self.wait()
        self.wait()
        return {"step_s": (time.perf_counter() - began) / count, "host_s": host_s / count}


def measured(setting: Setting, device: str, seconds: float) -> dict[str, Any]:
    """Return the measurement of a setting, or its error."""
    began = time.monotonic()
    try:
        step = Step(setting, device)
        found: dict[str, Any] = {"ready_s": time.monotonic() - began} | step.measure(seconds)
    except Exception as error:
        return {"error": f"{type(error).__name__}: {first_line(error)}"[:300]}

    found["tokens_per_s"] = step.num_tokens / found["step_s"]
    found["losses"] = step.losses
    if device == "cuda":
        found["peak_bytes"] = torch.cuda.max_memory_allocated()
        if peak := peak_flops_per_s(torch.cuda.get_device_name()):
            found["mfu"] = found["tokens_per_s"] * step.flops_per_token / peak
            if setting.model in ROOF:
                found["of_roof"] = found["mfu"] / ROOF[setting.model]
    return found


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
        row = measured(setting, options.device, options.each)
        log(f"{setting}: {shown(row)}")
        rows.append(asdict(setting) | row)
        write_json(path, {"on": machine_facts(options.device), "settings": rows})

        torch._dynamo.reset()
        gc.collect()
        if options.device == "cuda":
            torch.cuda.set_sync_debug_mode("default")
            torch.cuda.reset_peak_memory_stats()
            # After a failed capture, torch's allocator may refuse this.
            with contextlib.suppress(RuntimeError):
                torch.cuda.empty_cache()
    return EXIT_FAILED if all("error" in row for row in rows) else EXIT_DONE


def shown(row: dict[str, Any]) -> str:
    """Return a measurement in words."""
    if "error" in row:
        return str(row["error"])
    times = f"step {1e3 * row['step_s']:.1f} ms, host {1e3 * row['host_s']:.1f} ms"
    return f"{row['tokens_per_s']:,.0f} tokens/s, {times}, MFU {row.get('mfu', float('nan')):.3f}"


def race(setting: Setting, options: argparse.Namespace) -> int:
    """Time steps of each rotation in turn, and write their ratios to NoPE's."""
    steps = {rot: Step(replace(setting, rotate=rot), options.device) for rot in ROTATIONS}
    times: dict[str, list[float]] = {rotate: [] for rotate in ROTATIONS}
    end = time.monotonic() + options.seconds
    while len(times[""]) < 3 or time.monotonic() < end:
        for rotate, step in steps.items():
            times[rotate].append(step.measure(options.each)["step_s"])

    ratios = {}
    for rotate, seconds in times.items():
        rounds = [one / nope for one, nope in zip(seconds, times[""], strict=True)]
        ratios[rotate or "nope"] = quantiles(rounds, n=4)
        log(f"{replace(setting, rotate=rotate)}: {ratios[rotate or 'nope'][1]:.3f} times NoPE")
    values = {"setting": asdict(setting), "step_s": times, "times_nope": ratios}
    write_json(options.out / "race.json", {"on": machine_facts(options.device), **values})
    return EXIT_DONE


def main() -> int:
    """Run the command on this process's command line."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    add = parser.add_argument
    add("what", nargs="?", choices=("tune", "race"), default="tune")
    add("--models", default=",".join(SETTINGS), help="a race takes the first (%(default)s)")
    add("--set", dest="overrides", default="", metavar="'KEY=VALUE ...'")
    add("--device", default="cuda", help="(%(default)s)")
    add("--seconds", type=float, default=240.0, help="then start no other (%(default)s)")
    add("--each", type=float, default=1.5, help="seconds of a measurement (%(default)s)")
    add("--out", type=Path, required=True)
    options = parser.parse_args()

    listed = []
    for model in options.models.split(","):
        rows = SETTINGS[model]
        listed.append([Setting(model, *row, overrides=options.overrides) for row in rows])
    options.out.mkdir(parents=True, exist_ok=True)
    # Its key does not tell attention backends apart: one would be measured as the other.
    functorch.enable_autograd_cache = False
    if options.what == "race":
        return race(replace(listed[0][0], launch="compiled"), options)
    # The first setting of every model, then the second, so that each model has a result.
    rounds = itertools.zip_longest(*listed)
    return tune([setting for each in rounds for setting in each if setting], options)


if __name__ == "__main__":
    sys.exit(main())
