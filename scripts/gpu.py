"""Run tests, benchmarks and campaigns on a machine with a GPU, within a time limit.

    python scripts/gpu.py --minutes 28 --out FOLDER     # in the checkout

The parts run in order of their value: first the tests of tests/gpu; then scripts/bench.py, which
checks results and measures speed, into FOLDER/bench; then the campaigns, with their records packed
into FOLDER as each run ends. Every part is a separate command in its own process, and one that
fails does not stop the others. The same command resumes where it stopped: measurements in FOLDER
are kept, and the runs of this checkout are kept or resumed; the tests run each time. The output of
each part goes to FOLDER/PART.log.
"""

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rope_exp.system.console import log
from rope_exp.system.errors import EXIT_DONE, EXIT_FAILED, EXIT_STOPPED, EXIT_USAGE, ConfigError
from rope_exp.system.processes import ROOT

CAMPAIGNS = ("nine_10m", "nine_30m")
# A race between these measures the cost of rotations.
ARMS = tuple(f"--arm=pe={pe}" for pe in ("nope", "qk_rope", "vo_rope", "qkvo_rope"))
OPTIONS = ("--go-on", "--rounds", "6", "--name", "variants", *ARMS)
# Two contenders at a time share the memory.
LARGE = ("--models", "1b", "--set", "train.micro_batch_size=2")
# Time in which a part must end after a request: a campaign's runs save checkpoints and are packed.
GRACE_S = 30.0
# With less time no part starts: a campaign is asked to end twice, by its own clock, then by ours.
LEAST_S = 4 * GRACE_S


@dataclass(frozen=True)
class Part:
    """A command, and the largest share of the remaining time that it may take.

    Attributes:
        words: of the command line, after the interpreter.
        is_campaign: it receives its time limit, and stops by itself.
    """

    name: str
    words: Sequence[str]
    share: float
    is_campaign: bool = False


def parts(campaigns: Sequence[str], further: Sequence[str], out: Path) -> list[Part]:
    """Return all parts, in order.

    Args:
        further: options of every campaign's command line.
        out: the folder for measurements.
    """
    tests = ["-m", "pytest", "-q", "-p", "no:cacheprovider", str(ROOT / "tests/gpu")]
    bench = str(ROOT / "scripts/bench.py")
    options = [*OPTIONS, "--out", str(out / "bench")]
    small = [bench, "check", "limits", "speed", "race", *options, "--models", "10m,125m"]
    large = [bench, "speed", "race", *options, *LARGE]
    found = [Part("tests", tests, 0.2), Part("bench", small, 0.3), Part("bench_1b", large, 0.2)]
    for name in campaigns:
        found.append(Part(name, ["-m", "rope_exp", "campaign", name, *further], 1.0, True))
    return found


def run(part: Part, seconds: float, out: Path) -> int:
    """Run a part for a limited time, and return its exit code; 75 if it was stopped.

    All processes that it started end with it, also if this process is told to end, so the next part
    finds the GPU's memory free.
    """
    words = [sys.executable, *part.words]
    if part.is_campaign:
        hours = (seconds - 3 * GRACE_S) / 3600
        words += ["--hours", f"{hours:.4f}", "--archive", str(out)]

    with (out / f"{part.name}.log").open("ab") as written:
        process = subprocess.Popen(
            words, stdout=written, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            code = process.wait(timeout=seconds - GRACE_S)
            return code if code >= 0 else EXIT_FAILED
        except subprocess.TimeoutExpired:
            return EXIT_STOPPED
        finally:
            _end(process)


def _end(process: "subprocess.Popen[bytes]") -> None:
    """Ask a process to end, then kill it and all that it started."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=GRACE_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def chosen(found: Sequence[Part], only: Sequence[str]) -> list[Part]:
    """Return the parts of these names; all parts if there are no names.

    Raises:
        ConfigError: there is no such part.
    """
    names = [part.name for part in found]
    for name in only:
        if name not in names:
            raise ConfigError("--only", name, f"is not one of {', '.join(names)}")
    return [part for part in found if part.name in only or not only]


def main() -> int:
    """Run the command on this process's command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--minutes", type=float, default=28.0, help="for all parts together (%(default)s)")
    add("--out", type=Path, required=True, help="folder for logs, measurements and packed records")
    add("--campaigns", nargs="*", default=CAMPAIGNS, help=f"({' '.join(CAMPAIGNS)})")
    add(
        "--only", nargs="*", default=[], metavar="PART", help="tests, bench, bench_1b or a campaign"
    )
    add("--config-dir", type=Path, help="another folder of campaigns")
    add("--on-gpus", metavar="N", help="run every campaign here, N runs at a time on each GPU")
    asked = parser.parse_args()
    further = [] if asked.config_dir is None else ["--config-dir", str(asked.config_dir)]
    further += [] if asked.on_gpus is None else ["--on-gpus", asked.on_gpus]

    out = asked.out.absolute()
    try:
        found = chosen(parts(asked.campaigns, further, out), asked.only)
    except ConfigError as error:
        log(f"error: {error}")
        return EXIT_USAGE

    # Raised as an exception, which ends the running part.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(EXIT_STOPPED))
    end = time.monotonic() + 60 * asked.minutes
    out.mkdir(parents=True, exist_ok=True)
    codes = []
    for part in found:
        left = end - time.monotonic()
        seconds = left * part.share
        if seconds < LEAST_S:
            log(f"{part.name}: not started, {max(seconds, 0):.0f} s left")
            continue
        log(f"{part.name}: started, {seconds / 60:.1f} minutes left")
        codes.append(run(part, seconds, out))
        log(f"{part.name}: exit code {codes[-1]}, in {asked.out / part.name}.log")
    return max(codes, default=EXIT_DONE)


if __name__ == "__main__":
    sys.exit(main())
