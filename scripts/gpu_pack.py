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
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rope_exp.errors import ConfigError, log
from rope_exp.files import read_json, write_json
from rope_exp.machine import output_of

# A run imports these beyond the packages named above; the last three are for tests/gpu, and need
# pyarrow, pandas and fsspec, which are there, too.
PACKAGES = (
    "pydantic", "pydantic-core", "typing-inspection", "annotated-types", "typing-extensions",
    "hydra-core", "omegaconf", "datasets", "dill", "multiprocess",
)  # fmt: skip
# Published as source alone; pure Python.
SOURCES = ("antlr4-python3-runtime",)
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")


def pack(folder: Path, campaigns: Sequence[str], config_dir: Path | None, python: str) -> None:
    """Write a folder with all that `unpack` needs.

    Args:
        campaigns: their corpora are packed, and prepared first if necessary.
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
    binaries, sources = ([f"{n}=={version(n)}" for n in names] for names in (PACKAGES, SOURCES))
    try:
        output_of(*pip, "download", "--no-deps", *there, "--dest", str(folder), *binaries)
        output_of(*pip, "wheel", "--no-deps", "--wheel-dir", str(folder), *sources)
    except ChildProcessError as error:
        raise ConfigError("--pack", ..., f"cannot fetch packages: {error}") from None
