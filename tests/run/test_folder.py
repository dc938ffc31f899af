"""Tests that the files of a run folder are read back exactly, or refused by name."""

import os
import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.harm import Harm, efforts, harmed, try_harms
from support.refused import REFUSALS, refused
from support.reports import DIVERGED, FINISHED

from rope_exp import load_run
from rope_exp.compose import run_config
from rope_exp.files import write_json
from rope_exp.folder import (
    METRICS,
    MetricsWriter,
    last_step,
    read_config,
    read_env,
    read_metrics,
    read_result,
    read_runs,
    write_config,
)
from rope_exp.load import load_tokenizer
from rope_exp.report import build

READERS: dict[str, Callable[[Path], Any]] = {
    "config.yaml": read_config,
    "result.json": read_result,
    "env.json": read_env,
    "metrics.jsonl": read_metrics,
    "tokenizer.json": lambda folder: load_tokenizer(folder / "tokenizer.json"),
}


def test_a_config_of_an_older_version_has_todays_defaults(tmp_path: Path) -> None:
    """Newer keys get their defaults; keys that are gone are ignored."""
    config = run_config(["pe=vo_rope", "seed=7"])
    write_config(tmp_path, config)
    assert read_config(tmp_path) == config

    path = tmp_path / "config.yaml"
    values = yaml.safe_load(path.read_text())
    del values["train"]["peak_tflops"]
    del values["launch"]
    values["tracker"]["run_name"] = "mine"
    values["run"]["fresh"] = True
    path.write_text(yaml.safe_dump(values))
    assert read_config(tmp_path) == config


@pytest.mark.parametrize("written", [{}, {"format": 1}, {"format": "2"}, {"format": 3}])
def test_a_config_of_another_format_is_refused(tmp_path: Path, written: dict[str, Any]) -> None:
    config = run_config([])
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(written | config.to_dict()))
    with refused(str(path), "move the folder away to begin anew"):
        read_config(tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        "format: 2\na: &a\n  b: *a\n",
        "format: 2\nseed: one\n",
        "format: 2\nseeds: 1\n",
        "\x00",
        "a: " + "[" * 1000,
        "- " * 100_000,
        "{" * 1_000_000,
        "!!python/object:os.system x",
        "",
    ],
    ids=range(9),
)
def test_a_config_that_no_run_writes_is_refused_by_name(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.yaml").write_text(text)
    with refused("config.yaml"):
        read_config(tmp_path)


@pytest.mark.parametrize("result", [FINISHED, DIVERGED], ids=["finished", "diverged"])
def test_a_result_is_read_back_with_what_it_has_besides(
    tmp_path: Path, result: dict[str, Any]
) -> None:
    assert read_result(tmp_path) is None
    assert read_env(tmp_path) == {}
    write_json(tmp_path / "result.json", result | {"later": [1]})
    assert read_result(tmp_path) == result | {"later": [1], "rotate": ("v", "o")}


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
def test_a_result_with_a_wrong_key_is_refused(
    tmp_path: Path, result: dict[str, Any], key: str
) -> None:
    write_json(tmp_path / "result.json", result)
    with refused("result.json", key):
        read_result(tmp_path)


@pytest.mark.parametrize("name", READERS)
def test_what_is_no_such_file_is_refused_by_name(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_text("{}\n")
    with refused(name):
        READERS[name](tmp_path)
    path.unlink()
    path.mkdir()
    with refused(name):
        READERS[name](tmp_path)
    assert last_step(tmp_path) == 0


@pytest.mark.parametrize("name", READERS)
def test_a_named_pipe_is_refused_at_once(tmp_path: Path, name: str) -> None:
    """Opening one waits for a writer, which a folder from somebody else may not have."""
    os.mkfifo(tmp_path / name)
    with refused(name, "is not a regular file"):
        READERS[name](tmp_path)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("not json\n", 1),
        ('{"loss": 1}\n', 1),
        ('{"step": "1", "train/loss": 1}\n', 1),
        ('{"step": 1, "train/loss": "low"}\n', 1),
        ('{"step": 2, "train/loss": 1}\n{"step": 2, "train/loss": 1}\n', 2),
        ('{"step": 2, "train/loss": 1}\n\n', 2),
    ],
)
def test_a_line_that_is_no_row_is_refused_by_number(tmp_path: Path, text: str, line: int) -> None:
    (tmp_path / METRICS).write_text(text)
    with refused(f"{METRICS} line {line}"):
        MetricsWriter(tmp_path, 5)
    assert (tmp_path / METRICS).read_text() == text


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 10), st.data())
def test_a_run_that_goes_on_leaves_each_row_once(
    tmp_path: Path, saved: int, data: st.DataObject
) -> None:
    """A kill may cut the file anywhere after the checkpoint, even in the middle of a row.

    The rows up to the checkpoint do not change, byte for byte.
    """
    path = tmp_path / METRICS
    with closing(MetricsWriter(tmp_path)) as writer:
        for step in range(1, saved + 1):
            writer.write({"step": step, "train/loss": 1 / step})
    before = path.read_bytes()
    later = b"".join(b'{"step": %d, "train/loss": 1}\n' % step for step in range(saved + 1, 12))
    content = before + later
    path.write_bytes(content[: data.draw(st.integers(len(before), len(content)))])

    writer = MetricsWriter(tmp_path, saved)
    assert path.read_bytes() == before
    assert writer.last.get("step", 0) == saved
    writer.write({"step": saved + 1, "train/loss": 1})
    writer.close()
    steps = [row["step"] for row in read_metrics(tmp_path)]
    assert steps == list(range(1, saved + 2))
    assert last_step(tmp_path) == saved + 1
    assert path.read_bytes().endswith(b"\n")


@efforts(30, 3000)
def test_a_harmed_run_folder_is_read_or_refused(
    whole: tuple[Path, list[str]], tmp_path: Path, effort: int
) -> None:
    runs = tmp_path / "g"
    folder = runs / "vo_rope" / "seed0"
    shutil.copytree(whole[0], folder)
    assert [run.status for run in read_runs([runs])[0]] == ["finished"]
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != ".lock")

    def check(harm: Harm, path: Path) -> None:
        content = path.read_bytes()
        path.write_bytes(harmed(content, harm))
        try:
            for read in (lambda: load_run(folder), lambda: build(read_runs([runs])[0], ("pe",))):
                try:
                    read()
                except REFUSALS as error:
                    assert "\n" not in str(error)
        finally:
            path.write_bytes(content)

    try_harms(check, effort, st.sampled_from(files))
