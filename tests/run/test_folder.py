"""Tests that the files of a run folder are read back exactly, or refused by name."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.refused import refused
from support.results import DIVERGED, FINISHED

from rope_exp.compose import run_config
from rope_exp.files import write_json
from rope_exp.folder import read_config, read_env, read_metrics, read_result, write_config

READERS: dict[str, Callable[[Path], Any]] = {
    "config.yaml": read_config,
    "result.json": read_result,
    "env.json": read_env,
    "metrics.jsonl": read_metrics,
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
        pytest.param("format: 2\na: &a\n  b: *a\n", id="circular"),
        pytest.param("- 1\n", id="list"),
        pytest.param("seed: 1\n", id="no format"),
        pytest.param("format: 2\nseed: one\n", id="wrong type"),
        pytest.param("format: 2\nseeds: 1\n", id="unknown key"),
        pytest.param("\x00", id="nul"),
        pytest.param("{", id="open"),
        pytest.param("a: " + "[" * 5000, id="deep"),
        pytest.param("!!python/object:os.system x", id="tag"),
        pytest.param("", id="empty"),
    ],
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


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("{}", id="empty"),
        pytest.param("[]", id="list"),
        pytest.param("", id="nothing"),
        pytest.param('{"status": ' + "1" * 5000 + "}", id="long"),
        pytest.param("[" * 100_000, id="deep"),
    ],
)
@pytest.mark.parametrize("name", ["result.json", "env.json"])
def test_what_is_no_such_object_is_refused_by_name(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    with refused(name):
        READERS[name](tmp_path)


def test_before_the_first_start_there_is_nothing_to_read(tmp_path: Path) -> None:
    assert read_result(tmp_path) is None
    assert read_env(tmp_path) == {}
