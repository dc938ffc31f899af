"""Use a machine with a GPU for a few minutes: tests, tuning of the training step, and campaigns.

    python scripts/gpu.py --seconds 540                    # in a checkout, on the GPU
    python scripts/gpu.py --seconds 240 nine_10m           # this campaign alone

Parts run in this order, each in a process of its own: the quick tests of tests/gpu (75 s); the
settings of scripts/gpu_tune.py (240 s); then campaigns, several runs at a time under MPS, in the
time that is left. Failed tests end the command.
Logs and results go to --out, records to results/records. Repeated, settings and campaigns resume.

A machine without a network gets what it lacks from a folder, packed here and unpacked there:

    python scripts/gpu.py --pack build/pack
    PYTHONPATH=. python scripts/gpu.py --unpack build/pack --seconds 540
"""

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import gpu_pack

from rope_exp.errors import EXIT_DONE, EXIT_FAILED, EXIT_STOPPED, explained, log
from rope_exp.machine import ROOT, child_environment, output_of

PARTS = ("tests", "tune", "nine_10m")
# The most seconds of a part; a campaign takes all that are left.
SECONDS = {"tests": 75.0, "tune": 240.0}
TOGETHER = 20  # runs of a campaign at a time
GRACE_S = 10  # from a request to end until a part is killed
# Seconds before its end at which a campaign is asked to stop, so that its runs save checkpoints.
SAVING_S = 30.0
LEAST_S = 20.0  # with fewer seconds no part starts


def device() -> str:
    """Return the device of all parts; ROPE_EXP_DEVICE=cpu rehearses them without a GPU."""
    return os.environ.get("ROPE_EXP_DEVICE", "cuda")


def card() -> str:
    """Return the short name of the first GPU, as in results/bench."""
    if device() != "cuda":
        return device()
    name = output_of("nvidia-smi", "--query-gpu=name", "--format=csv,noheader")
    return name.removeprefix("NVIDIA ").split()[0]


def words_of(part: str, seconds: float, campaign: Sequence[str], out: Path) -> list[str]:
    """Return the command line of a part, after the interpreter; `campaign` is every campaign's."""
    tune = ["--device", device(), "--out", str(out), "--seconds", "220"]
    # The tests left out train for a minute, and are stopped and resumed.
    quick = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "not broken_off"]
    fixed = {
        "tests": [*quick, str(ROOT / "tests/gpu")],
        "tune": [str(ROOT / "scripts/gpu_tune.py"), *tune],
    }
    hours = f"{(seconds - SAVING_S) / 3600:.5f}"
    return fixed.get(part) or ["-m", "rope_exp", "campaign", *campaign, part, "--hours", hours]


def run(words: Sequence[str], seconds: float, log_file: Path) -> int:
    """Run Python and its children for a limited time; return its exit code, 75 if stopped."""
    limited = ["timeout", f"--kill-after={GRACE_S}", str(seconds), sys.executable, *words]
    end = time.monotonic() + seconds
    with log_file.open("ab") as to:
        code = subprocess.run(limited, stdout=to, stderr=to, env=child_environment()).returncode
    if time.monotonic() >= end:
        return EXIT_STOPPED
    # A child that was killed, say for its memory, ends `timeout` by the same signal.
    return code if code >= 0 else EXIT_FAILED


def run_all(parts: Sequence[str], campaign: Sequence[str], seconds: float, out: Path) -> int:
    """Run the parts in order, and return the largest exit code."""
    # Under NVIDIA's Multi-Process Service, kernels of several runs overlap.
    mps = shutil.which("nvidia-cuda-mps-control")
    end = time.monotonic() + seconds - GRACE_S
    codes = [EXIT_DONE]
    for part in parts:
        left = end - time.monotonic()
        is_campaign = part not in SECONDS
        if left < LEAST_S + SAVING_S * is_campaign:
            log(f"{part}: not started, {max(left, 0):.0f} s left")
            codes.append(EXIT_STOPPED)
            continue

        limit = min(SECONDS.get(part, left), left)
        log_file = out / f"{part}.log"
        log(f"{part}: started, at most {limit:.0f} s, in {log_file}")
        if mps and is_campaign:
            subprocess.run([mps, "-d"], check=False)
        try:
            codes.append(run(words_of(part, limit, campaign, out), limit, log_file))
        finally:
            if mps and is_campaign:
                subprocess.run([mps], input=b"quit\n", check=False)
        log(f"{part}: exit code {codes[-1]}")
        if part == "tests" and codes[-1] not in (EXIT_DONE, EXIT_STOPPED):
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

    if asked.pack:
        campaigns = [part for part in asked.parts if part not in SECONDS]
        gpu_pack.pack(asked.pack, campaigns, asked.config_dir, asked.python)
        return EXIT_DONE
    if asked.unpack:
        os.environ |= gpu_pack.unpack(asked.unpack)
    out = (asked.out or ROOT / "results/bench" / card()).absolute()
    campaign = ["--config-dir", str(asked.config_dir)] if asked.config_dir else []
    if device() == "cuda":
        campaign += ["--on-gpus", str(asked.together)]
    out.mkdir(parents=True, exist_ok=True)
    return run_all(asked.parts, campaign, asked.seconds, out)


if __name__ == "__main__":
    sys.exit(explained(main))
