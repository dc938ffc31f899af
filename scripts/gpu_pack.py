"""Pack what a machine without a network needs to train: missing packages, and prepared tokens.

    FOLDER/wheels/*.whl  FOLDER/tokens/KEY.tar.xz  FOLDER/pack.json: files of the corpora

The machine has torch, accelerate, tokenizers, safetensors, PyYAML and rich. Text and its source
files stay here: the key of prepared tokens hashes only names, sizes and times of the files, so
empty files that have the same ones take their place there. The digest of the tokens, which every
record holds, shows that they arrived unchanged.
"""

import os
import shutil
import sys
import zipfile
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rope_exp.errors import ConfigError, log
from rope_exp.files import read_json, write_json
from rope_exp.machine import output_of

# What a run imports beyond the packages named above.
PACKAGES = (
    "pydantic",
    "pydantic-core",
    "typing-inspection",
    "annotated-types",
    "typing-extensions",
    "hydra-core",
    "omegaconf",
    # For the corpora of tests/gpu. It needs pyarrow, pandas and fsspec, which are there, too.
    "datasets",
    "dill",
    "multiprocess",
)
# Published as source alone; pure Python.
SOURCES = ("antlr4-python3-runtime",)
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")

MOST_MIB = 60.0
WHEELS = "wheels"
TOKENS = "tokens"
NAME = "pack.json"


def pack(folder: Path, campaigns: Sequence[str], config_dir: Path | None, python: str) -> None:
    """Write a folder with all that `unpack` needs.

    Args:
        campaigns: their corpora are packed, and prepared first if necessary.
        python: version of the other machine's Python.
    Raises:
        ConfigError: a campaign or corpus cannot be read, a package cannot be fetched, or the folder
            would be too large.
    """
    from rope_exp.campaign.cells import load_campaign
    from rope_exp.config import DEFAULT_OUTPUT
    from rope_exp.corpora import list_files
    from rope_exp.prepare import prepare

    shutil.rmtree(folder, ignore_errors=True)
    _fetch_wheels(folder / WHEELS, python)

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
                shutil.make_archive(str(folder / TOKENS / key), "xztar", prepared.folder)
                count = prepared.num_train_tokens
                log(f"{config.data.name}: {count:,} tokens, data_sha256 {prepared.data_sha256}")
    write_json(folder / NAME, {"corpora": corpora})

    sizes = {part: _mib(folder / part) for part in (WHEELS, TOKENS)}
    log(f"{folder}: {sizes[WHEELS]:.1f} MiB of wheels, {sizes[TOKENS]:.1f} MiB of tokens")
    total = sum(sizes.values())
    if total > MOST_MIB:
        allowed = f"has {total:.1f} MiB, of at most {MOST_MIB:g}; choose less text"
        raise ConfigError("--pack", str(folder), allowed)


def unpack(folder: Path) -> dict[str, str]:
    """Unpack a folder into itself, unless it was before.

    Returns:
        Environment variables with which a child finds the packages and the tokens.
    Raises:
        ConfigError: `pack` has not written or not finished it.
    """
    folder = folder.absolute()
    if not (folder / NAME).exists():
        raise ConfigError("--unpack", str(folder), f"has no {NAME}, which --pack writes last")

    site = folder / "site"
    cache = folder / "cache"
    if not site.exists():
        temporary = folder / ".site"
        for wheel in (folder / WHEELS).iterdir():
            zipfile.ZipFile(wheel).extractall(temporary)
        temporary.rename(site)
    for key, corpus in read_json(folder / NAME)["corpora"].items():
        _stand_in(corpus["path"], corpus["files"])
        if not (cache / key).exists():
            shutil.rmtree(cache / f".{key}", ignore_errors=True)
            packed = folder / TOKENS / f"{key}.tar.xz"
            shutil.unpack_archive(packed, cache / f".{key}", filter="data")
            (cache / f".{key}").rename(cache / key)
    paths = [str(site), os.environ.get("PYTHONPATH")]
    return {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "ROPE_EXP_CACHE": str(cache)}


def _fetch_wheels(folder: Path, python: str) -> None:
    """Fetch the packages at the versions installed here, for another Python on Linux."""
    folder.mkdir(parents=True)
    pip = [sys.executable, "-m", "pip", "-qq"]
    there = ["--python-version", python, "--only-binary", ":all:"]
    there += [word for platform in PLATFORMS for word in ("--platform", platform)]
    try:
        wanted = [f"{name}=={version(name)}" for name in PACKAGES]
        output_of(*pip, "download", "--no-deps", *there, "--dest", str(folder), *wanted)
        wanted = [f"{name}=={version(name)}" for name in SOURCES]
        output_of(*pip, "wheel", "--no-deps", "--wheel-dir", str(folder), *wanted)
    except ChildProcessError as error:
        raise ConfigError("--pack", ..., f"cannot fetch packages: {error}") from None


def _stand_in(path: str, files: Sequence[tuple[str, int, int]]) -> None:
    """Make empty files of these names, sizes and times, if there is nothing at the path."""
    root = Path(path).expanduser()
    if root.exists():
        return
    temporary = root.with_name(f".{root.name}")
    for name, size, mtime_ns in files:
        file = temporary / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
        os.truncate(file, size)
        os.utime(file, ns=(mtime_ns, mtime_ns))
    temporary.rename(root)


def _mib(folder: Path) -> float:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 2**20
