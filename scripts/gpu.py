"""Use a machine with a GPU for a few minutes: tests, tuning of the training step, and campaigns.

    python scripts/gpu.py --seconds 540                    # in a checkout, on the GPU
    python scripts/gpu.py --seconds 240 nine_10m           # this campaign alone

Parts run in this order, each in a process of its own: the quick tests of tests/gpu (75 s); the
settings of scripts/gpu_tune.py (240 s); steps of QK and QKVO against NoPE's at 125m (60 s); then
campaigns, several runs at a time under MPS, in the time that is left. Failed tests end the command.
Logs and results go to --out, records to results/records. A repeated command resumes: it leaves out
the parts that succeeded.

A machine without a network gets what it lacks from a folder, packed here and unpacked there:

    python scripts/gpu.py --pack build/pack
    PYTHONPATH=. python scripts/gpu.py --unpack build/pack --seconds 540
"""

import argparse
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import gpu_pack

from rope_exp.errors import EXIT_DONE, EXIT_FAILED, EXIT_STOPPED, EXIT_USAGE, ConfigError, log
from rope_exp.files import read_json, write_json
from rope_exp.machine import ROOT, child_environment, output_of

PARTS = ("tests", "tune", "race", "nine_10m")
TOGETHER = 9  # runs of a campaign at a time: all rows of a seed
DONE = "parts.json"
# Seconds from a request to end until a part is killed.
GRACE_S = 10.0
# Seconds before its end at which a campaign is asked to stop, so that its runs save checkpoints.
SAVING_S = 30.0
# Seconds with which no part starts.
LEAST_S = 20.0


@dataclass(frozen=True)
class Part:
    """A command.

    Attributes:
        words: of the command line, after the interpreter.
        seconds: the most that it may take; None: all that are left, for a campaign.
    """

    name: str
    words: Sequence[str]
    seconds: float | None = None


def parts(names: Sequence[str], further: Sequence[str], out: Path) -> list[Part]:
    """Return the parts of these names.

    Args:
        names: tests, tune, race; any other is a campaign.
        further: options of every campaign's command line.
        out: the folder for results.
    """
    # The tests left out train for a minute, and are stopped and resumed.
    quick = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "not broken_off"]
    tune = [str(ROOT / "scripts/gpu_tune.py"), "--device", device(), "--out", str(out)]
    campaign = ["-m", "rope_exp", "campaign", *further]
    fixed = {
        "tests": Part("tests", [*quick, str(ROOT / "tests/gpu")], 75.0),
        "tune": Part("tune", [*tune, "--seconds", "220"], 240.0),
        "race": Part("race", [*tune, "race", "--seconds", "20"], 60.0),
    }
    return [fixed.get(name) or Part(name, [*campaign, name]) for name in names]


def device() -> str:
    """Return the device of all parts; ROPE_EXP_DEVICE=cpu rehearses them without a GPU."""
    return os.environ.get("ROPE_EXP_DEVICE", "cuda")


def card() -> str:
    """Return the short name of the first GPU, as in results/bench."""
    if device() != "cuda":
        return device()
    query = ("--query-gpu=name", "--format=csv,noheader")
    try:
        name = output_of("nvidia-smi", *query).splitlines()[0]
    except (ChildProcessError, IndexError):
        raise ConfigError("--out", None, "is needed: this machine shows no GPU") from None
    return name.removeprefix("NVIDIA ").split()[0]


def run(part: Part, seconds: float, out: Path) -> int:
    """Run a part for a limited time, and return its exit code; 75 if it was stopped.

    All processes that it started end with it, also if this process is told to end, so the next part
    finds the GPU's memory free.
    """
    words = [sys.executable, *part.words]
    if part.seconds is None:
        words += ["--hours", f"{max(seconds - SAVING_S, 1) / 3600:.5f}"]

    with (out / f"{part.name}.log").open("ab") as written:
        process = subprocess.Popen(
            words,
            stdout=written,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=child_environment(),
        )
        try:
            code = process.wait(timeout=seconds)
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


@contextlib.contextmanager
def mps() -> Iterator[None]:
    """Run NVIDIA's Multi-Process Service, if it is here: kernels of several runs overlap."""
    control = shutil.which("nvidia-cuda-mps-control")
    if control is None or device() != "cuda":
        yield
        return
    subprocess.run([control, "-d"], check=False)
    try:
        yield
    finally:
        subprocess.run([control], input=b"quit\n", check=False)


def run_all(found: Sequence[Part], seconds: float, out: Path) -> int:
    """Run the parts that have not succeeded yet, and return the largest exit code."""
    end = time.monotonic() + seconds - GRACE_S
    path = out / DONE
    done = read_json(path) if path.exists() else {}
    codes = [EXIT_DONE]
    for part in found:
        if done.get(part.name, {}).get("exit_code") == EXIT_DONE:
            log(f"{part.name}: done before, in {out}")
            continue
        left = end - time.monotonic()
        is_campaign = part.seconds is None
        if left < (LEAST_S + SAVING_S if is_campaign else LEAST_S):
            log(f"{part.name}: not started, {max(left, 0):.0f} s left")
            codes.append(EXIT_STOPPED)
            continue

        limit = min(part.seconds or left, left)
        log(f"{part.name}: started, at most {limit:.0f} s")
        began = time.monotonic()
        with mps() if is_campaign else contextlib.nullcontext():
            codes.append(run(part, limit, out))
        done[part.name] = {"exit_code": codes[-1], "seconds": round(time.monotonic() - began, 1)}
        write_json(path, done)
        log(f"{part.name}: exit code {codes[-1]}, in {out / part.name}.log")
        if part.name == "tests" and codes[-1] not in (EXIT_DONE, EXIT_STOPPED):
            log("stopped: the other parts would measure wrong results")
            break
    return max(codes)


def main() -> int:
    """Run the command on this process's command line."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    add = parser.add_argument
    add("parts", nargs="*", default=PARTS, metavar="PART", help=f"default: {' '.join(PARTS)}")
    add("--seconds", type=float, default=540.0, help="for all parts together (%(default)s)")
    add("--out", type=Path, help="default: results/bench/CARD")
    add("--config-dir", type=Path, help="another folder of campaigns")
    add("--together", type=int, default=TOGETHER, metavar="N", help="runs at a time (%(default)s)")
    add("--pack", type=Path, metavar="FOLDER", help="write what another machine lacks, and end")
    add("--python", default="3.12", help="the other machine's (%(default)s)")
    add("--unpack", type=Path, metavar="FOLDER", help="of --pack")
    asked = parser.parse_args()

    try:
        if asked.pack:
            campaigns = [part.name for part in parts(asked.parts, [], Path()) if not part.seconds]
            gpu_pack.pack(asked.pack, campaigns, asked.config_dir, asked.python)
            return EXIT_DONE
        if asked.unpack:
            os.environ |= gpu_pack.unpack(asked.unpack)
        out = (asked.out or ROOT / "results/bench" / card()).absolute()
    except ConfigError as error:
        log(f"error: {error}")
        return EXIT_USAGE

    further = ["--config-dir", str(asked.config_dir)] if asked.config_dir else []
    if device() == "cuda":
        further += ["--on-gpus", str(asked.together)]
    # Raised as an exception, which ends the running part.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(EXIT_STOPPED))
    out.mkdir(parents=True, exist_ok=True)
    return run_all(parts(asked.parts, further, out), asked.seconds, out)


if __name__ == "__main__":
    sys.exit(main())
