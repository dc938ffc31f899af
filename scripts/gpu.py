"""All that a machine with a GPU can add within a time, in the order of its worth.

    python scripts/gpu.py --minutes 28 --out FOLDER     # in the checkout

First the tests of tests/gpu; then whether what is measured computes what it should, and how fast,
by scripts/bench.py; then the campaigns, whose records are packed into --out as each ends. Every
part is a command of its own, in a process of its own, and leaves out what it has done already: the
same command goes on where it stopped, on the same machine, or on another with the same checkout.
What each part prints goes to FOLDER/PART.log.
"""

import argparse
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rope_exp.system.console import log
from rope_exp.system.errors import EXIT_DONE, EXIT_STOPPED
from rope_exp.system.processes import ROOT

CAMPAIGNS = ("nine_10m", "nine_30m")
# What rotations cost is the race of these.
ARMS = tuple(f"--arm=pe={pe}" for pe in ("nope", "qk_rope", "vo_rope", "qkvo_rope"))
OPTIONS = ("--go-on", "--rounds", "6", "--name", "variants", *ARMS)
# Two contenders at a time hold their memory.
LARGE = ("--models", "1b", "--set", "train.micro_batch_size=2")
# Below this nothing is begun: a campaign's runs need it to save a checkpoint and to be packed.
LEAST_SECONDS = 60.0


@dataclass(frozen=True)
class Part:
    """A command, and the share of what is left that it may take at most.

    Attributes:
        words: behind the interpreter.
        is_campaign: it is told how long it has, and stops by itself.
    """

    name: str
    words: Sequence[str]
    share: float
    is_campaign: bool = False


def parts(campaigns: Sequence[str], config_dir: Path | None) -> list[Part]:
    """Return what is to be done, in order.

    Args:
        config_dir: a further folder of campaigns.
    """
    further = [] if config_dir is None else ["--config-dir", str(config_dir)]
    tests = ["-m", "pytest", "-q", "-p", "no:cacheprovider", str(ROOT / "tests/gpu")]
    bench = str(ROOT / "scripts/bench.py")
    small = [bench, "check", "limits", "speed", "race", *OPTIONS, "--models", "10m,125m"]
    large = [bench, "speed", "race", *OPTIONS, *LARGE]
    found = [Part("tests", tests, 0.2), Part("bench", small, 0.3), Part("bench_1b", large, 0.2)]
    for name in campaigns:
        found.append(Part(name, ["-m", "rope_exp", "campaign", name, *further], 1.0, True))
    return found


def run(part: Part, seconds: float, out: Path) -> int:
    """Run a part for so long at most, and return its exit code; a stopped one's is 75."""
    words = [sys.executable, *part.words]
    if part.is_campaign:
        hours = (seconds - LEAST_SECONDS / 2) / 3600
        words += ["--hours", f"{hours:.4f}", "--archive", str(out)]

    with (out / f"{part.name}.log").open("ab") as written:
        process = subprocess.Popen(words, stdout=written, stderr=subprocess.STDOUT)
        try:
            return process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGTERM)
        try:
            process.wait(timeout=LEAST_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    return EXIT_STOPPED


def main() -> int:
    """Run the command on this process's command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--minutes", type=float, default=28.0, help="for all parts together (%(default)s)")
    add("--out", type=Path, required=True, help="gets the logs and the packed records")
    add("--campaigns", nargs="*", default=CAMPAIGNS, help=f"({' '.join(CAMPAIGNS)})")
    add("--only", nargs="*", metavar="PART", help="tests, bench, bench_1b or a campaign")
    add("--config-dir", type=Path, help="a further folder of campaigns")
    asked = parser.parse_args()

    end = time.monotonic() + 60 * asked.minutes
    asked.out.mkdir(parents=True, exist_ok=True)
    codes = {}
    for part in parts(asked.campaigns, asked.config_dir):
        if asked.only and part.name not in asked.only:
            continue
        left = end - time.monotonic()
        if left < LEAST_SECONDS:
            log(f"{part.name}: not begun, {max(left, 0):.0f} s are left")
            continue
        log(f"{part.name}: begun, {left / 60:.1f} minutes are left")
        codes[part.name] = run(part, left * part.share, asked.out.absolute())
        log(f"{part.name}: exit code {codes[part.name]}, in {asked.out / part.name}.log")
    return EXIT_DONE if not any(codes.values()) else max(codes.values())


if __name__ == "__main__":
    sys.exit(main())
