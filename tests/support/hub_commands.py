"""Runner of the project's commands against the fake hub."""

import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from rope_exp.compose import run_config
from rope_exp.prepare import prepare
from rope_exp.tokenizer import END_OF_TEXT, byte_tokenizer
from support.command import started
from support.configs import REPOSITORY
from support.hub import Hub, sha1

TOKEN = "hf_thisMustNeverBeSeen"
CARD = b"""---
configs:
- config_name: plain
  data_files:
  - {split: train, path: "data/train-*"}
  - {split: validation, path: "data/validation-*"}
---
"""
# A sitecustomize.py, imported by every process of a command. It shortens waits, because the
# libraries would otherwise wait for minutes.
IMPATIENT = """
import time
sleep = time.sleep
time.sleep = lambda seconds: sleep(min(seconds, 0.01))
"""
NO_NETWORK = """
import os, socket

def refuse(*arguments, **options):
    with open(os.environ["SOCKETS"], "a") as file:
        print(arguments, file=file)
    raise OSError("no network in this test")

socket.getaddrinfo = socket.create_connection = refuse
socket.socket.connect = socket.socket.connect_ex = refuse
socket.socket.bind = socket.socket.sendto = refuse
"""


def parquet(texts: list[str], **options: Any) -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.table({"text": texts}), file, **options)
    return file.getvalue()


TEXTS = [
    f"Document {n}. " + " ".join(str(n * k * 7919 % 10007) for k in range(40)) for n in range(300)
]
SHARDS = [parquet(TEXTS[start : start + 100], row_group_size=30) for start in (0, 100, 200)]
HELD_OUT = parquet(TEXTS[:50])
FIRST = f"GET /files/{sha1(SHARDS[0])} "
SECOND = f"GET /files/{sha1(SHARDS[1])} "
CORPUS = {
    **{f"data/train-{n:05d}-of-00003.parquet": shard for n, shard in enumerate(SHARDS)},
    "data/validation-00000-of-00001.parquet": HELD_OUT,
}
WORDS = {
    "config.json": b'{"model_type": "gpt2"}',
    "tokenizer.json": byte_tokenizer().to_str().encode(),
    "tokenizer_config.json": json.dumps(
        {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END_OF_TEXT}
    ).encode(),
}
UNPINNED = ("data=hub", "data.path=owner/corpus", "data.subset=plain")
HUB_DATA = (*UNPINNED, f"data.revision={Hub.revision}")
HUB_WORDS = (
    "tokenizer=pretrained",
    "tokenizer.path=owner/words",
    f"tokenizer.revision={Hub.revision}",
)


@dataclass(frozen=True)
class Done:
    """The outcome of a command.

    Attributes:
        errors: the lines of standard error that begin with "error: ".
    """

    code: int
    sha256: str | None
    errors: list[str]
    stderr: str

    def fails(self, code: int, sentence: str) -> None:
        """Assert that it ended with this code and one line of error, without a traceback."""
        assert (self.code, len(self.errors)) == (code, 1), self
        assert re.match(f"error: {sentence}", self.errors[0]), self
        assert "Traceback" not in self.stderr, self


Run = Callable[..., Done]
Local = tuple[str, str]


def runner(hub: Hub, tmp_path: Path) -> Run:
    """Return a function that runs a command against the fake hub, and finds a leaked token."""

    def run(
        *command: str,
        script: str = "prepare",
        site: str = IMPATIENT,
        **changes: str,
    ) -> Done:
        (tmp_path / "site").mkdir(exist_ok=True)
        (tmp_path / "site" / "sitecustomize.py").write_text(site)
        environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith("HF_")},
            "HF_ENDPOINT": hub.url,
            "HF_HOME": str(tmp_path / "home"),
            "HF_HUB_DOWNLOAD_TIMEOUT": "1",
            "HF_HUB_ETAG_TIMEOUT": "1",
            "HF_TOKEN": TOKEN,
            "NO_PROXY": "*",
            "PYTHONPATH": f"{tmp_path / 'site'}{os.pathsep}{REPOSITORY}",
            "ROPE_EXP_CACHE": str(tmp_path / "cache"),
            "SOCKETS": str(tmp_path / "sockets"),
            **changes,
        }
        child = subprocess.run(
            [sys.executable, *started(script), *command],
            cwd=tmp_path,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert TOKEN not in child.stdout + child.stderr
        files = [path for path in tmp_path.rglob("*") if path.is_file()]
        assert not [path for path in files if TOKEN.encode() in path.read_bytes()]
        lines = child.stderr.splitlines()
        found = re.search(r"sha256: +(\w{64})", child.stdout)
        return Done(
            child.returncode,
            found[1] if found else None,
            [line for line in lines if line.startswith("error: ")],
            child.stderr,
        )

    return run


def prepared_from_files(files: Mapping[str, bytes], folder: Path) -> tuple[str, str]:
    """Write these files to a folder, and return its override and the SHA-256 of their tokens."""
    for name, content in files.items():
        (folder / "corpus" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "corpus" / name).write_bytes(content)
    path = f"data.path={folder / 'corpus'}"
    cache = f"data.cache_dir={folder / 'cache'}"
    config = run_config(["data=files", path, cache, "tokenizer=bytes"])
    return path, prepare(config.data, config.tokenizer).data_sha256
