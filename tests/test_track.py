"""wandb, the real package, offline: what it wrote is read back; what fails there stays there."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rope_exp import track
from rope_exp.config import RunConfig
from rope_exp.track import NoTracker, WandbTracker, open_tracker

ROWS = [
    {"step": step, "tokens": 64 * step, "train/loss": 5.0 - step, "lr": 1e-3, "grad_norm": 0.5, "tokens_per_s": None}
    for step in (1, 2, 3)
]


def read_back(folder: Path) -> list[Any]:
    """Every record of the one .wandb file below `folder`: protobuf messages in LevelDB's log format.

    After 7 bytes of header, blocks of 32 KiB hold chunks of (crc32, 2 bytes of length, type) and data; a record is
    one whole chunk (type 1) or a first, middles and a last one (2, 3, 4).
    """
    from wandb.proto import wandb_internal_pb2

    [path] = folder.rglob("*.wandb")
    content, position, parts, records = path.read_bytes(), 7, b"", []
    while position + 7 <= len(content):
        left = 32768 - position % 32768
        if left < 7:  # too little for a header: the rest of the block is padding
            position += left
            continue
        length, kind = int.from_bytes(content[position + 4 : position + 6], "little"), content[position + 6]
        parts += content[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(parts)
            records.append(record)
            parts = b""
    return records


def test_what_wandb_wrote_offline_is_the_run(
    tiny: Callable[..., RunConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "c0ffee" * 6 + "c0ff")
    config = tiny("tracker=wandb", "tracker.mode=offline", "pe=vo_rope", "seed=3")
    tracker = open_tracker(config, tmp_path)
    for row in ROWS:
        tracker.log({**row, **({"val/loss": 4.5} if row["step"] == 3 else {})})
    tracker.finish({"status": "finished", "val/loss": 4.5})
    deadline = time.monotonic() + 20
    # wandb's own process may still be writing when its finish() has returned.
    while not any(record.HasField("exit") for record in read_back(tmp_path)):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    records = read_back(tmp_path)
    runs = [record.run for record in records if record.HasField("run")]
    assert runs[0].display_name == "vo_rope-s3"
    assert runs[0].run_group == config.group
    assert runs[0].job_type == "vo_rope"
    stored = {item.key: json.loads(item.value_json) for item in runs[0].config.update}
    assert stored["optim"]["lr"] == config.optim.lr
    metrics = [record.metric for record in records if record.HasField("metric")]
    assert any(metric.glob_name == "*" and metric.step_metric == "tokens" for metric in metrics)
    rows = [
        {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
        for record in records
        if record.HasField("history")
    ]
    assert [(row["step"], row["tokens"], row["train/loss"]) for row in rows] == [
        (1, 64, 4.0),
        (2, 128, 3.0),
        (3, 192, 2.0),
    ]
    assert rows[2]["val/loss"] == 4.5
    for path in tmp_path.rglob("*"):
        assert not path.is_file() or b"c0ffeec0ffee" not in path.read_bytes(), path


def test_none_tracks_nothing(tiny: Callable[..., RunConfig], tmp_path: Path) -> None:
    assert isinstance(open_tracker(tiny(), tmp_path), NoTracker)
    assert list(tmp_path.iterdir()) == []


def failing(*args: object, **kwargs: object) -> None:
    raise ConnectionError("the tracker's host does not answer")


def hanging(*args: object, **kwargs: object) -> None:
    time.sleep(60)


@pytest.mark.parametrize("init", [failing, hanging], ids=["fails", "hangs"])
def test_a_tracker_that_fails_or_hangs_costs_a_warning_and_little_time(
    tiny: Callable[..., RunConfig],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    init: Callable[..., None],
) -> None:
    monkeypatch.setattr("wandb.init", init)
    monkeypatch.setattr(track, "FINISH_SECONDS", 0.5)
    started = time.monotonic()
    tracker = WandbTracker(tiny("tracker=wandb"), tmp_path)
    for row in ROWS:
        tracker.log(row)
    tracker.finish(None)
    assert time.monotonic() - started < 5
    assert capsys.readouterr().err.count("warning: the wandb tracker") == 1
