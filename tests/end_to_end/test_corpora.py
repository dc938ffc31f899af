"""End-to-end tests of training on corpora in formats that users have."""

import gzip
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from support.configs import REPOSITORY
from support.corpora import TEXTS, write_parquet

from rope_exp.system.files import read_json


def categories(folder: Path) -> Path:
    """Write a categorical column, which pandas stores as integer codes for texts."""
    pd.DataFrame({"text": pd.Categorical(TEXTS)}).to_parquet(folder / "a.parquet")
    return folder / "a.parquet"


def snapshot(folder: Path) -> Path:
    """Write a folder like huggingface_hub's snapshots, in which every file is a symbolic link."""
    blob = write_parquet(folder / "blobs" / "a.parquet", TEXTS).rename(folder / "blobs" / "0a1b")
    data = folder / "snapshots" / "2c3d" / "data"
    data.mkdir(parents=True)
    (data / "train-00000-of-00001.parquet").symlink_to(blob)
    return data.parent


def packed(folder: Path) -> Path:
    """Write a gzip file that unpacks to almost 400 times its size."""
    with gzip.open(folder / "a.jsonl.gz", "wt") as file:
        for text in TEXTS:
            file.write('{"text": "' + f"{text[:10]} again and again, " * 500 + '"}\n')
    return folder / "a.jsonl.gz"


@pytest.mark.parametrize("make", [categories, snapshot, packed])
def test_a_run_on_it(
    tiny_overrides: list[str], tmp_path: Path, make: Callable[[Path], Path]
) -> None:
    corpus = [f"data.path={make(tmp_path)}", f"data.cache_dir={tmp_path / 'cache'}"]
    options = ["train.compile=false", "train.precision=fp32", "launch.device=cpu"]
    done = subprocess.run(
        [sys.executable, "train.py", *tiny_overrides, *corpus, *options],
        cwd=REPOSITORY,
        env=os.environ,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert read_json(tmp_path / "run" / "result.json")["status"] == "finished"
