"""How fast training goes here and what it could do: `python scripts/bench.py [PART ...] [--models nano,10m]`.

Parts, in the order they run:
  check      the nine variants of the first model against float64, compiled and eager; the loss falls. Else it ends here
  limits     rates of matrix products and of memory
  speed      tokens/s of each model beside its peers, interleaved, with the step's floor and MFU
  breakdown  where a step's time goes
  variants   the step time of each variant beside NoPE's
  compile    the first step cold, warm, and of another variant after the first; when compiling pays back
  growth     step time and memory against length, width, layers, vocabulary
  start      --help, a config error, the first step of a prepared run (CPU)
  placement  a sweep with one core a run beside all cores a run (CPU)
  figure     throughput against size

One JSON file a part (and model) goes to --out, with what it was measured on; what is there already is not measured
again without --again, so that a broken-off bench goes on. Peers: transformers' Trainer, eager and compiled; litgpt,
with the interpreter of an environment that has it (--litgpt; without one it is left out); and our model in a bare loop.
"""

import argparse
import dataclasses
import functools
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from benchmarks import commands, growth
from benchmarks.check import check
from benchmarks.kernels import breakdown
from benchmarks.limits import floor, limits
from benchmarks.race import Entry, race

from rope_exp.config.compose import run_config
from rope_exp.config.costs import flops_per_token, num_parameters
from rope_exp.config.resolve import settle
from rope_exp.config.run import RunConfig
from rope_exp.data.prepare import prepare
from rope_exp.run.provenance import machine_facts
from rope_exp.system.console import say
from rope_exp.system.errors import ConfigError
from rope_exp.system.files import write_json
from rope_exp.system.machine import has_compiler
from rope_exp.training.throughput import peak_flops_per_s

NINE = (
    "nope",
    "q_rope",
    "k_rope",
    "v_rope",
    "o_rope",
    "qk_rope",
    "vo_rope",
    "qkv_rope",
    "qkvo_rope",
)
PARTS = (
    "check",
    "limits",
    "speed",
    "breakdown",
    "variants",
    "compile",
    "growth",
    "start",
    "placement",
    "figure",
)
PEERS = ("bare", "Trainer eager", "Trainer compiled", "litgpt")
DEFAULT = ("check", "limits", "speed", "figure")


class Bench:
    """The parts, and where their results go."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.measured: set[str] = set()
        self.configs = {name: self.config(name) for name in arguments.models.split(",")}
        self.device = next(iter(self.configs.values())).launch.device
        self.facts = machine_facts(self.device)
        self.out = Path(arguments.out or f"results/bench/{self.device}")
        self.out.mkdir(parents=True, exist_ok=True)

    def config(self, model: str, *overrides: str) -> RunConfig:
        """A size as it trains here; on a GPU with two micro-batches a step, so that a step is short."""
        config = settle(
            run_config([f"model={model}", "pe=qk_rope", *self.arguments.overrides, *overrides])
        )
        if config.launch.num_processes != 1:
            raise ConfigError(
                "launch.num_processes",
                config.launch.num_processes,
                "must be 1: one process is measured",
            )
        if not has_compiler(config.launch.device):
            raise ConfigError("train.compile", True, "this machine has no compiler")
        micro = config.train.micro_batch_size
        if config.launch.device == "cuda" and micro is not None:
            config = config.replace("train", global_batch_size=2 * micro)
        return config.replace("train", compile=True)

    def run(self, parts: Sequence[str]) -> None:
        """In the order of PARTS."""
        for part in PARTS:
            if part in parts:
                getattr(self, part)()
                if self.device == "cuda":
                    torch.cuda.empty_cache()  # the next part's processes need it

    def measure(
        self, name: str, how: Callable[..., dict[str, Any]], *arguments: Any
    ) -> dict[str, Any]:
        """The result of that name, measured unless it is there."""
        path = self.out / f"{name}.json"
        if path.exists() and (name in self.measured or not self.arguments.again):
            known: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            if known["on"]["device"] != self.facts["device"]:
                raise ConfigError(
                    "--out",
                    str(self.out),
                    f"holds what {known['on']['device']} measured; name another",
                )
            if name not in self.measured:
                say(f"{name}: there already, in {path}")
            result: dict[str, Any] = known["result"]
            return result
        say(f"{name}: measuring")
        found = how(*arguments)
        write_json(path, {"on": self.facts, "result": found})
        self.measured.add(name)
        return found

    # -- parts ---------------------------------------------------------------------------------------------------

    def check(self) -> None:
        [(name, config), *_] = self.configs.items()
        variants = {pe: self.config(name, f"pe={pe}") for pe in NINE}
        errors = self.measure(f"check-{name}", check, variants, vocab_size(config))
        worst = max(errors[pe][how]["gradient"] for pe in NINE for how in ("eager", "compiled"))
        print(
            f"check: nine variants at {name}: gradients within {worst:.1e} of float64's; every loss falls"
        )

    def limits(self) -> None:
        found = self.measure("limits", limits, self.device)
        rates = found["matmul_flops_per_s"]
        print(
            f"limits: products {rates['bf16'] / 1e12:,.2f} TFLOP/s in bf16, {rates['fp32'] / 1e12:,.2f} in fp32; "
            f"copies {found['copy_bytes_per_s'] / 1e9:,.0f} GB/s"
        )

    def speed(self) -> None:
        known = self.measure("limits", limits, self.device)
        for name, config in self.configs.items():
            found = self.measure(f"speed-{name}", self._speed, config, known)
            print(
                f"speed: {name}, {found['precision']}, {found['tokens_per_step']:,} tokens a step"
            )
            for arm, values in found["arms"].items():
                low, middle, high = values["times_as_slow"]
                print(
                    f"  {arm:17} {values['tokens_per_s']:>11,.0f} tokens/s, {middle:5.2f} times as slow as ours "
                    f"({low:.2f} to {high:.2f}), {values['peak_bytes'] / 2**20:,.0f} MiB"
                )
            limit = found["floor"]
            mfu = f", MFU {found['mfu']:.1%}" if found["mfu"] is not None else ""
            print(
                f"  floor {limit['floor_s'] * 1e3:.1f} ms a step; ours reaches {found['of_floor']:.0%} of its rate{mfu}"
            )

    def _speed(self, config: RunConfig, known: dict[str, Any]) -> dict[str, Any]:
        peak = peak_flops_per_s(torch.device(self.device), 1, config.train.peak_tflops)
        peers = {
            name: Entry(name, config)
            for name in self.arguments.peers.split(",")
            if name != "litgpt"
        }
        litgpt = Path(self.arguments.litgpt)
        if "litgpt" in self.arguments.peers and litgpt.exists():
            peers["litgpt"] = Entry("litgpt", config, str(litgpt))
        elif "litgpt" in self.arguments.peers:
            say(f"  litgpt: left out, there is no {litgpt}")
        ours = {"ours": Entry("ours", config)}
        turn = functools.partial(race, rounds=self.arguments.rounds, steps=self._steps(config))
        if self.device == "cpu":
            found = turn(ours | peers)
        else:  # two at a time: each holds what its model takes of the GPU
            found = {}
            for name, peer in peers.items():
                found |= turn(ours | {name: peer})
        size = vocab_size(config)
        least = floor(config, size, known)
        rate = found["ours"]["tokens_per_s"]
        return {
            "arms": found,
            "params": num_parameters(config.architecture(size)),
            "precision": config.train.precision,
            "tokens_per_step": config.train.global_batch_size * config.train.seq_len,
            "floor": least,
            "of_floor": least["floor_s"] / found["ours"]["step_s"][1],
            "mfu": rate * flops_per_token(config, size) / peak if peak else None,
            "flops_per_token": flops_per_token(config, size),
        }

    def breakdown(self) -> None:
        for name, config in self.configs.items():
            found = self.measure(f"breakdown-{name}", breakdown, config, vocab_size(config))
            parts = ", ".join(f"{what} {share:.0%}" for what, share in found["shares"].items())
            print(f"breakdown: {name}: {parts}")

    def variants(self) -> None:
        for name, config in self.configs.items():
            chosen = NINE if self.device == "cpu" else ("nope", "qk_rope", "vo_rope", "qkvo_rope")
            arms = {
                pe: Entry("bare", dataclasses.replace(config, pe=self.config(name, f"pe={pe}").pe))
                for pe in chosen
            }
            turn = functools.partial(race, rounds=self.arguments.rounds, steps=self._steps(config))
            found = self.measure(f"variants-{name}", turn, arms)
            ratios = ", ".join(
                f"{pe} {values['times_as_slow'][1]:.3f}" for pe, values in found.items()
            )
            print(f"variants: {name}, step time beside NoPE's: {ratios}")

    def compile(self) -> None:
        for name, config in self.configs.items():
            found = self.measure(f"compile-{name}", commands.compile_times, config)
            print(
                f"compile: {name}: first step {found['cold_s']:.1f} s cold, {found['warm_s']:.1f} s warm, "
                f"{found['other_variant_s']:.1f} s of another variant after the first, {found['eager_s']:.1f} s eager; "
                f"steps until it pays back: {_count(found['pays_after_steps_cold'])} cold, "
                f"{_count(found['pays_after_steps_warm'])} warm"
            )

    def growth(self) -> None:
        [name, *_] = self.configs
        found = self.measure("growth", growth.growth, functools.partial(self.config, name))
        for line in growth.lines(found):
            print(line)

    def start(self) -> None:
        found = self.measure("start", commands.start_times)
        for what, (low, middle, high) in found.items():
            print(f"start: {what}: {middle:.2f} s ({low:.2f} to {high:.2f})")

    def placement(self) -> None:
        found = self.measure("placement", commands.placement)
        for what, values in found.items():
            print(f"placement: {what}: {values}")

    def figure(self) -> None:
        from benchmarks.figure import draw

        print(f"figure: {draw(self.out)}")

    def _steps(self, config: RunConfig) -> int:
        """Of each turn of a race: seconds at the most."""
        return (
            10
            if config.train.global_batch_size * config.train.seq_len <= 4096
            else 1
            if self.device == "cpu"
            else 4
        )


def _count(steps: float | None) -> str:
    return "never" if steps is None else f"{steps:,.0f}"


def vocab_size(config: RunConfig) -> int:
    """Of the prepared corpus."""
    return prepare(config.data, config.tokenizer, seq_len=config.train.seq_len).vocab_size


def main() -> int:
    """Measure the parts asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", help=f"default: {' '.join(DEFAULT)}")
    parser.add_argument("--models", default="nano,10m")
    parser.add_argument("--peers", default=",".join(PEERS), help="default: %(default)s")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--out", help="default: results/bench/<device>")
    parser.add_argument("--again", action="store_true", help="measure what was measured before")
    parser.add_argument(
        "--litgpt", default=".venv-litgpt/bin/python", help="a Python that has litgpt"
    )
    parser.add_argument("--set", dest="overrides", action="append", default=[], metavar="KEY=VALUE")
    arguments = parser.parse_args()
    parts = arguments.parts or DEFAULT
    for part in parts:
        if part not in PARTS:
            parser.error(f"part={part} is not one of {', '.join(PARTS)}")
    for peer in arguments.peers.split(","):
        if peer not in PEERS:
            parser.error(f"--peers: {peer!r} is not one of {', '.join(PEERS)}")
    if arguments.rounds < 1:
        parser.error(f"--rounds: {arguments.rounds} must be at least 1")
    try:
        Bench(arguments).run(parts)
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
