"""Runs that report to wandb, and a reader of wandb's files. No test reaches wandb's servers."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from support.configs import REPOSITORY

KEY = "c0ffee" * 6 + "c0ff"  # as long as a real one
UNREACHABLE = "http://127.0.0.1:9"
WARNING = "warning: the wandb tracker failed ("


def tracked(
    tmp_path: Path, command: list[str], **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run `train.py tracker=wandb` in `tmp_path / "run"`."""
    home = tmp_path / "home"
    home.mkdir(exist_ok=True)
    own = {"HOME": str(home), "WANDB_API_KEY": KEY, "WANDB_BASE_URL": UNREACHABLE}
    train = [sys.executable, str(REPOSITORY / "train.py"), *command]
    return subprocess.run(
        [*train, f"run.dir={tmp_path / 'run'}", "tracker=wandb"],
        cwd=tmp_path,
        env=os.environ | own | {"OMP_NUM_THREADS": "1"} | environment,
        capture_output=True,
        text=True,
        timeout=90,
    )


def recorded(folder: Path) -> list[Any]:
    """Return all records of the one .wandb file below `folder`: protobuf in LevelDB's log format.

    After a header of 7 bytes, blocks of 32 KiB hold chunks: crc32, length (2 bytes), type, data. A
    record is one full chunk (type 1), or a first, any middle and a last chunk (2, 3, 4).
    """
    from wandb.proto import wandb_internal_pb2

    [path] = folder.rglob("*.wandb")
    content = path.read_bytes()
    position = 7
    parts = b""
    records = []
    while position + 7 <= len(content):
        left = 32768 - position % 32768
        # The rest of a block is padding if it is too short for a chunk's header.
        if left < 7:
            position += left
            continue
        length = int.from_bytes(content[position + 4 : position + 6], "little")
        kind = content[position + 6]
        parts += content[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(parts)
            records.append(record)
            parts = b""
    return records


def history(records: list[Any]) -> list[dict[str, Any]]:
    """Return the history rows of these records, with `_step` but without wandb's other keys."""
    rows = []
    for record in records:
        if record.HasField("history"):
            row = {
                item.key or "/".join(item.nested_key): json.loads(item.value_json)
                for item in record.history.item
            }
            rows.append({key: row[key] for key in row if key == "_step" or key[0] != "_"})
    return rows


def as_sent(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return rows of metrics.jsonl in the form of `history`: the step as `_step`, and no nulls."""
    sent = []
    for row in rows:
        known = {key: value for key, value in row.items() if value is not None}
        sent.append({"_step": known.pop("step"), **known})
    return sent
