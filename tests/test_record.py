"""The run folder: whole rows in step order, none twice, and files that appear whole."""

import json
from pathlib import Path

import pytest
from conftest import REPOSITORY
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rope_exp.compose import run_config
from rope_exp.record import (
    DiskError,
    MetricsWriter,
    RecordError,
    check_space,
    read_config,
    read_json,
    read_metrics,
    write_atomically,
    write_config,
    write_json,
)


def test_config_yaml_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    config = run_config(["pe=vo_rope", "seed=7"])
    write_config(tmp_path, config)
    assert read_config(tmp_path) == config


def test_rows_are_read_back_in_step_order(tmp_path: Path) -> None:
    writer = MetricsWriter(tmp_path, 0)
    for step in (1, 2, 5):
        writer.write({"step": step, "train/loss": 1 / step})
    writer.close()
    assert [row["step"] for row in read_metrics(tmp_path)] == [1, 2, 5]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 12), st.integers(0, 40))
def test_resuming_at_a_step_leaves_each_row_once_wherever_the_file_was_cut(
    tmp_path: Path, resume: int, cut: int
) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(json.dumps({"step": step}) + "\n" for step in range(1, 11)))
    with path.open("r+b") as file:
        file.truncate(max(path.stat().st_size - cut, 0))  # a kill in the middle of a row
    whole = [row["step"] for row in read_metrics(tmp_path)]
    writer = MetricsWriter(tmp_path, resume)
    kept = [step for step in whole if step <= resume]
    writer.write({"step": max([resume, *kept]) + 1})
    writer.close()
    assert [row["step"] for row in read_metrics(tmp_path)] == [*kept, max([resume, *kept]) + 1]
    assert path.read_bytes().endswith(b"\n")


@pytest.mark.parametrize(
    "text", ["not json\n", "[1]\n", '{"loss": 1}\n', '{"step": "1"}\n', '{"step": 2}\n{"step": 2}\n']
)
def test_lines_that_are_no_rows_are_refused_by_number(tmp_path: Path, text: str) -> None:
    (tmp_path / "metrics.jsonl").write_text(text)
    with pytest.raises(RecordError, match=r"metrics\.jsonl line \d"):
        read_metrics(tmp_path)


def test_nan_is_no_json(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(tmp_path / "result.json", {"val/loss": float("nan")})
    assert list(tmp_path.iterdir()) == []


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "result.json"
    write_atomically(path, "old")

    def broken(descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("os.fsync", broken)
    with pytest.raises(OSError, match="Input/output"):
        write_atomically(path, "new")
    assert path.read_text() == "old"


@given(st.binary(max_size=200))
def test_any_bytes_are_a_json_object_or_a_clear_refusal(tmp_path_factory: pytest.TempPathFactory, raw: bytes) -> None:
    path = tmp_path_factory.mktemp("json") / "result.json"
    path.write_bytes(raw)
    try:
        assert isinstance(read_json(path), dict)
    except RecordError as error:
        assert str(path) in str(error)


def test_too_little_space_is_said_with_folder_and_bytes(tmp_path: Path) -> None:
    check_space(tmp_path / "deep" / "down", 1, "a byte")
    with pytest.raises(DiskError, match=r"deep/down: a lot needs 10,000,000,000,000,000,000 bytes and [\d,]+ are free"):
        check_space(tmp_path / "deep" / "down", 10**19, "a lot")
    assert list(tmp_path.iterdir()) == []


def test_the_repository_holds_no_word_of_where_it_was_made() -> None:
    words = ("/wo" + "rk/", "/ro" + "ot/", "/tm" + "p/")
    for path in [*REPOSITORY.glob("rope_exp/**/*.py"), *REPOSITORY.glob("tests/*.py"), *REPOSITORY.glob("*.md")]:
        assert not any(word in path.read_text(encoding="utf-8") for word in words), path
