"""A reader of wandb's files. No test reaches wandb's servers."""

import json
from pathlib import Path
from typing import Any


def recorded(folder: Path) -> list[Any]:
    """Return all records of the one .wandb file below `folder`: protobuf in LevelDB's log format.

    After a header of 7 bytes, blocks of 32 KiB hold chunks: crc32, length (2 bytes), type, data. A
    record is one full chunk (type 1), or a first, any middle and a last chunk (2, 3, 4). The rest
    of a block is padding if it is too short for a chunk's header.
    """
    from wandb.proto.wandb_internal_pb2 import Record

    [path] = folder.rglob("*.wandb")
    content = path.read_bytes()
    position = 7
    parts = b""
    records = []
    while position + 7 <= len(content):
        left = 32768 - position % 32768
        if left < 7:
            position += left
            continue
        start = position + 7
        position = start + int.from_bytes(content[position + 4 : position + 6], "little")
        parts += content[start:position]
        if content[start - 1] in (1, 4):
            records.append(Record.FromString(parts))
            parts = b""
    return records


def history(records: list[Any]) -> list[dict[str, Any]]:
    """Return the history rows of these records, with `_step` but without wandb's other keys."""
    rows = []
    for record in records:
        items = record.history.item
        row = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}
        if row:
            rows.append({key: row[key] for key in row if key == "_step" or key[0] != "_"})
    return rows


def as_sent(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return rows of metrics.jsonl in the form of `history`: the step as `_step`, and no nulls."""
    named = [{"_step": row["step"]} | row for row in rows]
    return [
        {key: row[key] for key in row if key != "step" and row[key] is not None} for row in named
    ]
