"""Measure the speed of training here, and its limits: `python scripts/bench.py [PART ...]`.

Each result is printed, and written with facts about the machine to a JSON file in --out. Part speed
compares with transformers' Trainer, eager and compiled; with litgpt, if .venv-litgpt has it; and
with our model in a bare loop. Parts, in the order in which they run:

"""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import yaml
from benchmarks import parts
from benchmarks.check import check
from benchmarks.decode import decode
from benchmarks.device import breakdown, limits
from benchmarks.length import length
from benchmarks.setting import Bench

from rope_exp.system.console import log
from rope_exp.system.errors import ConfigError
from rope_exp.system.files import read_json, write_json

PARTS: dict[str, Callable[[Bench, str], dict[str, Any]]] = {
    "check": check,
    "limits": limits,
    "speed": parts.speed,
    "breakdown": breakdown,
    "race": parts.race_arms,
    "decode": decode,
    "length": length,
    "prepare": parts.prepare,
    "against": parts.against,
}
FIGURE = "figure"
DEFAULT = ("check", "limits", "speed", "prepare", FIGURE)
# The other parts measure the first model alone.
EVERY_MODEL = ("speed", "breakdown", "race", "decode", "length")
# Drawn as soon as they are measured.
AGAINST_TOKENS = ("decode", "length")
# Their files have no model's name.
NAMELESS = ("limits", "prepare")


def main() -> int:
    """Measure the requested parts.

    Returns:
        The exit code: 0, or 2 after a mistake in the command, reported in one sentence.
    """
    about = [f"  {name:9}  {str(part.__doc__).splitlines()[0]}" for name, part in PARTS.items()]
    about.append(f"  {FIGURE:9}  Redraw all results of speed, decode and length.")
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__ + "\n".join(about), formatter_class=raw)
    add = parser.add_argument
    add("parts", nargs="*", metavar="PART", help=f"default: {' '.join(DEFAULT)}")
    add("--models", default="nano,10m", help="default: %(default)s")
    add("--set", dest="overrides", action="append", default=[], metavar="KEY=VALUE")
    add("--out", type=Path, help="default: results/bench/<device>")
    add("--go-on", action="store_true", help="skip what the same options have measured")
    add("--rounds", type=int, default=12, help="default: %(default)s")
    add("--arm", dest="arms", action="append", default=[], metavar="'KEY=VALUE ...'")
    add("--name", default="race", help="name of a race's file; default: %(default)s")
    add("--tree", type=Path, help="the other checkout, for part against")
    options = parser.parse_args()
    unknown = {*options.parts} - {*PARTS, FIGURE}
    if unknown:
        parser.error(f"part={unknown.pop()} is not one of {', '.join([*PARTS, FIGURE])}")
    if options.name.partition("-")[0] in {*PARTS} - {"race"}:
        parser.error(f"--name: {options.name} would be mistaken for a result of another part")
    if options.rounds < 1:
        parser.error(f"--rounds: {options.rounds} must be at least 1")

    try:
        measure(Bench(options), options.parts or DEFAULT)
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def measure(bench: Bench, chosen: Sequence[str]) -> None:
    """Measure parts, in their own order, and print and write their results."""
    for part in PARTS:
        if part not in chosen:
            continue
        for model in bench.models if part in EVERY_MODEL else bench.models[:1]:
            name = bench.options.name if part == "race" else part
            if part not in NAMELESS:
                name += f"-{model}"

            path = bench.folder / f"{name}.json"
            measured = {"on": bench.facts, "options": bench.asked(model)}
            earlier = read_json(path) if bench.options.go_on and path.exists() else {}
            if measured.items() <= earlier.items():
                log(f"{name}: already measured, in {path}")
                result = earlier["result"]
            else:
                log(f"{name}: measuring")
                result = PARTS[part](bench, model)
                write_json(path, measured | {"result": result})
                print(shown({name: result}))
                # The next part's processes need it.
                torch.cuda.empty_cache()

            if part in AGAINST_TOKENS:
                from benchmarks.figure import draw_contexts

                print(f"{FIGURE}: {draw_contexts(path)}")

    if FIGURE in chosen:
        from benchmarks.figure import draw

        for path in draw(bench.folder):
            print(f"{FIGURE}: {path}")


def shown(result: dict[str, Any]) -> str:
    """Return the lines that show a result to a person: numbers to four digits."""
    short = json.loads(json.dumps(result), parse_float=lambda digits: float(f"{float(digits):.4g}"))
    return yaml.safe_dump(short, default_flow_style=None, sort_keys=False, width=100)


if __name__ == "__main__":
    sys.exit(main())
