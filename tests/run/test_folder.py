"""Tests that the files of a run folder are read back exactly, or refused by name."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.refused import refused
from support.results import DIVERGED, FINISHED

from rope_exp.compose import run_config
from rope_exp.files import write_json
from rope_exp.folder import (
    last_step,
    read_config,
    read_env,
    read_metrics,
    read_result,
    write_config,
)
from rope_exp.tokenizer import load_tokenizer

READERS: dict[str, Callable[[Path], Any]] = {
    "config.yaml": read_config,
    "result.json": read_result,
    "env.json": read_env,
    "metrics.jsonl": read_metrics,
    "tokenizer.json": lambda folder: load_tokenizer(folder / "tokenizer.json"),
}


# -- config.yaml ---------------------------------------------------------------------------------


def test_config_yaml_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    config = run_config(["pe=vo_rope", "seed=7"])
    write_config(tmp_path, config)
    assert read_config(tmp_path) == config


def test_a_config_of_an_older_version_has_todays_defaults(tmp_path: Path) -> None:
    """Keys and sections that are newer than the file get their defaults."""
    config = run_config(["pe=vo_rope", "seed=7"])
    write_config(tmp_path, config)
    path = tmp_path / "config.yaml"
    values = yaml.safe_load(path.read_text())
    assert next(iter(values)) == "format"
    del values["train"]["peak_tflops"]
    del values["launch"]
    path.write_text(yaml.safe_dump(values))
    assert read_config(tmp_path) == config


@pytest.mark.parametrize("written", [{}, {"format": 1}, {"format": "2"}, {"format": 3}])
def test_a_config_of_another_format_is_refused(tmp_path: Path, written: dict[str, Any]) -> None:
    config = run_config([])
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(written | config.to_dict()))
    with refused(str(path), "run.fresh=true begins anew"):
        read_config(tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        "format: 2\na: &a\n  b: *a\n",
        "- 1\n",
        "format: 2\nseed: one\n",
        "format: 2\nseeds: 1\n",
        "\x00",
        "{",
        "a: " + "[" * 5000,
        "!!python/object:os.system x",
        "",
    ],
    ids=range(9),
)
def test_a_config_that_no_run_writes_is_refused_by_name(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.yaml").write_text(text)
    with refused("config.yaml"):
        read_config(tmp_path)


# -- result.json and env.json --------------------------------------------------------------------


@pytest.mark.parametrize("result", [FINISHED, DIVERGED], ids=["finished", "diverged"])
def test_a_result_is_read_back_with_what_it_has_besides(
    tmp_path: Path, result: dict[str, Any]
) -> None:
    write_json(tmp_path / "result.json", result | {"later": [1]})
    found = read_result(tmp_path)
    assert found == result | {"later": [1], "rotate": ("v", "o")}


@pytest.mark.parametrize(
    ("result", "key"),
    [
        (FINISHED | {"val/loss": None}, "val/loss"),
        (DIVERGED | {"val/loss": 4.5}, "val/loss"),
        (FINISHED | {"status": "diverged", "val/loss": None}, "diverged_step"),
        (FINISHED | {"status": "running"}, "status"),
        (FINISHED | {"rotate": "vo"}, "rotate"),
        (FINISHED | {"init_sha256": "0" * 63}, "init_sha256"),
        (FINISHED | {"wall_s": -1.0}, "wall_s"),
        (FINISHED | {"params": 0}, "params"),
        ({key: value for key, value in FINISHED.items() if key != "params"}, "params"),
    ],
)
def test_a_result_with_a_wrong_key_is_refused_by_both(
    tmp_path: Path, result: dict[str, Any], key: str
) -> None:
    write_json(tmp_path / "result.json", result)
    with refused("result.json", key):
        read_result(tmp_path)


@pytest.mark.parametrize("name", READERS)
def test_what_is_no_such_file_is_refused_by_name(tmp_path: Path, name: str) -> None:
    """A pipe is not opened, which might never end."""
    path = tmp_path / name
    path.write_text("{}\n")
    with refused(name):
        READERS[name](tmp_path)
    path.unlink()
    for make in (os.mkfifo, os.mkdir):
        make(path)
        with refused(f"{path} is no regular file"):
            READERS[name](tmp_path)
        assert last_step(tmp_path) == 0
        path.rename(tmp_path / make.__name__)


def test_before_the_first_start_there_is_nothing_to_read(tmp_path: Path) -> None:
    assert read_result(tmp_path) is None
    assert read_env(tmp_path) == {}
