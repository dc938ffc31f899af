"""Use a machine with a GPU for a few minutes: tests, tuning of the training step, and campaigns.

Parts run in this order, each in a process: the quick tests of tests/gpu (75 s; if they fail, the
command ends), the settings of scripts/gpu_tune.py (240 s), then campaigns, several runs at a time
under MPS, in the time that is left. docs/performance.md has commands, also for a machine without a
network that has torch, accelerate, tokenizers, safetensors and PyYAML.

A pack holds wheels and prepared tokens. Text stays here: the tokens' key hashes only names, sizes
and times of its files, so empty files that have the same ones take their place there. The digest of
the tokens, which every record holds, shows that they arrived unchanged.
"""

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rope_exp.errors import EXIT_DONE, EXIT_FAILED, EXIT_STOPPED, ConfigError, log, run_command
from rope_exp.files import read_json, write_json
from rope_exp.machine import ROOT, child_environment, output_of

# ROPE_EXP_DEVICE=cpu rehearses all parts without a GPU.
DEVICE = os.environ.get("ROPE_EXP_DEVICE", "cuda")
PARTS = ("tests", "tune", "nine_10m")
# The most seconds of a part; a campaign takes all that are left.
SECONDS = {"tests": 75.0, "tune": 240.0}
TOGETHER = "20"  # runs of a campaign at a time
GRACE_S = 10  # from a request to end until a part is killed
# Seconds before its end at which a campaign is asked to stop, so that its runs save checkpoints.
SAVING_S = 30.0
LEAST_S = 20.0  # with fewer seconds no part starts

# A run imports these beyond the packages named above; the last three are for tests/gpu, and need
# pyarrow, pandas and fsspec, which are there, too.
PACKAGES = (
    "pydantic",
    "pydantic-core",
    "typing-inspection",
    "annotated-types",
    "typing-extensions",
    "hydra-core",
    "omegaconf",
    "datasets",
    "dill",
    "multiprocess",
)
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")


def words_of(part: str, seconds: float, campaign: Sequence[str], out: Path) -> list[str]:
    """Return the command line of a part, after the interpreter; `campaign` is every campaign's."""
    tune = ["--device", DEVICE, "--out", str(out), "--seconds", "220"]
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


def pack(folder: Path, campaigns: Sequence[str], config_dir: Path | None, python: str) -> None:
    """Write a folder with all that `unpack` needs.

    Args:
        folder: is removed first, with all that it holds.
        campaigns: their corpora are packed, and prepared first if necessary.
        config_dir: a folder of further campaigns and configs; None if there is none.
        python: version of the other machine's Python.
    """
    from rope_exp.campaign.cells import load_campaign
    from rope_exp.config import DEFAULT_OUTPUT
    from rope_exp.corpora.files import list_files
    from rope_exp.prepare import prepare

    shutil.rmtree(folder, ignore_errors=True)
    fetch_wheels(folder / "wheels", python)

    corpora: dict[str, Any] = {}
    for name in campaigns:
        for cell in load_campaign(name, config_dir, DEFAULT_OUTPUT).cells:
            config = cell.config
            # Other kinds of data need no file.
            if config.data.kind != "files":
                continue
            prepared = prepare(config.data, config.tokenizer, seq_len=config.train.seq_len)
            key = prepared.folder.name
            if key not in corpora:
                corpora[key] = {"path": config.data.path, "files": list_files(config.data)}
                shutil.make_archive(str(folder / "tokens" / key), "xztar", prepared.folder)
                count = prepared.num_train_tokens
                log(f"{config.data.name}: {count:,} tokens, data_sha256 {prepared.data_sha256}")
    write_json(folder / "pack.json", {"corpora": corpora})
    num_bytes = sum(path.stat().st_size for path in folder.rglob("*"))
    log(f"{folder}: {num_bytes / 2**20:.1f} MiB")


def unpack(folder: Path) -> dict[str, str]:
    """Unpack a folder into itself.

    Returns:
        Environment variables with which a child finds the packages and the tokens.
    """
    folder = folder.absolute()
    corpora = read_json(folder / "pack.json")["corpora"]
    for wheel in (folder / "wheels").iterdir():
        shutil.unpack_archive(wheel, folder / "site", "zip")
    for key, corpus in corpora.items():
        packed = folder / "tokens" / f"{key}.tar.xz"
        shutil.unpack_archive(packed, folder / "cache" / key, filter="data")

        root = Path(corpus["path"]).expanduser()
        stand_ins = [] if root.exists() else corpus["files"]
        for name, size, mtime_ns in stand_ins:
            file = root / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.touch()
            os.truncate(file, size)
            os.utime(file, ns=(mtime_ns, mtime_ns))

    paths = [str(folder / "site"), os.environ.get("PYTHONPATH")]
    return {
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "ROPE_EXP_CACHE": str(folder / "cache"),
    }


def fetch_wheels(folder: Path, python: str) -> None:
    """Fetch the packages at the versions installed here, for another Python on Linux."""
    pip = [sys.executable, "-m", "pip", "-qq"]
    there = ["--python-version", python, "--only-binary", ":all:"]
    there += [word for platform in PLATFORMS for word in ("--platform", platform)]
    wheels = [f"{name}=={version(name)}" for name in PACKAGES]
    # Published as source alone; pure Python.
    source = "antlr4-python3-runtime"
    try:
        output_of(*pip, "download", "--no-deps", *there, "--dest", str(folder), *wheels)
        built = f"{source}=={version(source)}"
        output_of(*pip, "wheel", "--no-deps", "--wheel-dir", str(folder), built)
    except ChildProcessError as error:
        raise ConfigError("--pack", ..., f"cannot fetch packages: {error}") from None


def main() -> int:
    """Run the command on this process's command line."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    add = parser.add_argument
    add("parts", nargs="*", default=PARTS, metavar="PART", help=f"default: {' '.join(PARTS)}")
    add("--seconds", type=float, default=540.0, help="for all parts together (%(default)s)")
    add("--out", type=Path, help="default: results/bench/CARD")
    add("--config-dir", type=Path, help="another folder of campaigns")
    add("--pack", type=Path, metavar="FOLDER", help="write what another machine lacks, and end")
    add("--python", default="3.12", help="the other machine's (%(default)s)")
    add("--unpack", type=Path, metavar="FOLDER", help="of --pack")
    args = parser.parse_args()

    if args.pack:
        campaigns = [part for part in args.parts if part not in SECONDS]
        pack(args.pack, campaigns, args.config_dir, args.python)
        return EXIT_DONE
    if args.unpack:
        os.environ |= unpack(args.unpack)
    campaign = ["--config-dir", str(args.config_dir)] if args.config_dir else []
    card = DEVICE
    if DEVICE == "cuda":
        campaign += ["--on-gpus", TOGETHER]
    if DEVICE == "cuda" and args.out is None:
        name = output_of("nvidia-smi", "--query-gpu=name", "--format=csv,noheader")
        card = name.removeprefix("NVIDIA ").split()[0]
    out = (args.out or ROOT / "results/bench" / card).absolute()
    out.mkdir(parents=True, exist_ok=True)
    return run_all(args.parts, campaign, args.seconds, out)


if __name__ == "__main__":
    sys.exit(run_command(main))
