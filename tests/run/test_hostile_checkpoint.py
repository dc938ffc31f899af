"""Tests that malicious checkpoints are refused by name, and that none of their code runs."""

import contextlib
import os
import pickle
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.checkpoints import FILES, save, seal
from support.refused import refused

from rope_exp import checkpoint
from rope_exp.errors import CheckpointError
from rope_exp.folder import last_step, read_config, read_env, read_metrics, read_result
from rope_exp.tokenizer import load_tokenizer


class Bomb:
    """Creates a folder when it is unpickled."""

    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.canary),)


def header(text: str, length: int | None = None) -> bytes:
    return struct.pack("<Q", len(text) if length is None else length) + text.encode()


ONE_FLOAT = '"dtype":"F32","shape":[1],"data_offsets":[0,4]'
HOSTILE = {
    "oversized header": header("{}", 2**63 - 1),
    "header past the end": header("{}", 10_000),
    "absurd shape": header(
        '{"a":{"dtype":"F32","shape":[9223372036854775807,4],"data_offsets":[0,4]}}'
    )
    + b"abcd",
    "overlap": header(f'{{"a":{{{ONE_FLOAT}}},"b":{{{ONE_FLOAT}}}}}') + b"abcd",
    "past the end": header('{"a":{"dtype":"F32","shape":[9],"data_offsets":[0,36]}}') + b"abcd",
    "no type": header('{"a":{"dtype":"PICKLE","shape":[1],"data_offsets":[0,4]}}') + b"abcd",
    "deep": header("[" * 100_000),
    "empty": b"",
}


@pytest.mark.parametrize("kind", HOSTILE)
@pytest.mark.parametrize("name", FILES[:2])
def test_tensors_that_lie_are_refused_by_name(tmp_path: Path, name: str, kind: str) -> None:
    """The manifest matches the file, so only the parser of its header can refuse it."""
    save(tmp_path, 1)
    path = tmp_path / "step_00000001" / name
    path.write_bytes(HOSTILE[kind])
    seal(path.parent)
    with refused(name):
        checkpoint.load(tmp_path, 1)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_a_pipe_or_a_folder_is_refused_by_name(
    tmp_path: Path, name: str, make: Callable[[Path], None]
) -> None:
    """The checkpoint before it is loaded; a pipe is not opened, which might never end."""
    save(tmp_path, 1)
    save(tmp_path, 2)
    path = tmp_path / "step_00000002" / name
    path.unlink()
    make(path)
    with refused(f"{path} is no regular file", by=CheckpointError):
        checkpoint.load(tmp_path, 2)
    newest = checkpoint.load_newest(tmp_path)
    assert newest is not None
    assert newest.step == 1


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_other_files_of_a_run_are_regular_too(tmp_path: Path, make: Callable[[Path], None]) -> None:
    readers: dict[str, Callable[[Path], Any]] = {
        "config.yaml": read_config,
        "env.json": read_env,
        "result.json": read_result,
        "metrics.jsonl": read_metrics,
        "tokenizer.json": lambda folder: load_tokenizer(folder / "tokenizer.json"),
    }
    for name, read in readers.items():
        make(tmp_path / name)
        with refused(f"{tmp_path / name} is no regular file"):
            read(tmp_path)
    assert last_step(tmp_path) == 0


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("write", ["pickle", "torch"])
def test_a_pickle_is_refused_and_never_run(tmp_path: Path, name: str, write: str) -> None:
    canary = tmp_path / "canary"
    save(tmp_path, 1)
    path = tmp_path / "step_00000001" / name
    if write == "pickle":
        path.write_bytes(pickle.dumps(Bomb(canary)))
    else:
        torch.save({"a": Bomb(canary)}, path)
    if name != "manifest.json":
        seal(path.parent)
    with refused(name):
        checkpoint.load_newest(tmp_path)
    assert not canary.exists()


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(FILES), st.data())
def test_any_sealed_file_is_loaded_or_refused(
    tmp_path: Path, name: str, data: st.DataObject
) -> None:
    """CheckpointError is the only exception, whatever bytes the manifest matches."""
    folder = tmp_path / "checkpoints"
    save(folder, 2)
    path = folder / "step_00000002" / name
    content = path.read_bytes()
    place = data.draw(st.integers(0, len(content)))
    inserted = data.draw(st.binary(max_size=20))
    rest = content[data.draw(st.integers(0, 40)) + place :]
    path.write_bytes(content[:place] + inserted + rest)
    if name != "manifest.json":
        seal(path.parent)
    with contextlib.suppress(CheckpointError):
        checkpoint.load(folder, 2)
