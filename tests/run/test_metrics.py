"""Tests of metrics.jsonl: whole rows in step order, none repeated, after any interruption."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.refused import refused

from rope_exp.folder import (
    METRICS,
    NEWEST_BYTES,
    MetricsWriter,
    last_step,
    newest_values,
    read_metrics,
)

SAME_FOLDER = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


def write_rows(folder: Path, steps: Iterable[int]) -> None:
    writer = MetricsWriter(folder)
    for step in steps:
        writer.write({"step": step, "train/loss": 1 / step})
    writer.close()


def steps_of(rows: Iterable[dict[str, Any]]) -> list[int]:
    return [row["step"] for row in rows]


# -- reading -------------------------------------------------------------------------------------


def test_rows_are_read_back_in_step_order(tmp_path: Path) -> None:
    assert read_metrics(tmp_path) == []
    assert last_step(tmp_path) == 0
    write_rows(tmp_path, (1, 2, 5))
    assert steps_of(read_metrics(tmp_path)) == [1, 2, 5]
    assert last_step(tmp_path) == 5


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("not json\n", 1),
        ("[1]\n", 1),
        ('{"loss": 1}\n', 1),
        ('{"step": "1"}\n', 1),
        ('{"step": 2}\n{"step": 2}\n', 2),
        ('{"step": 2}\n\n', 2),
    ],
)
def test_a_line_that_is_no_row_is_refused_by_number(tmp_path: Path, text: str, line: int) -> None:
    (tmp_path / METRICS).write_text(text)
    with refused(f"{METRICS} line {line}"):
        read_metrics(tmp_path)


@pytest.mark.parametrize("num_rows", [1, 7, 400])
def test_the_newest_values_are_those_of_the_last_rows(tmp_path: Path, num_rows: int) -> None:
    """This also holds for a long file whose last line is half written."""
    write_rows(tmp_path, range(1, num_rows + 1))
    path = tmp_path / METRICS
    assert (path.stat().st_size > NEWEST_BYTES) == (num_rows == 400)
    with path.open("a") as file:
        file.write('{"step"')
    assert newest_values(tmp_path) == {"step": num_rows, "train/loss": 1 / num_rows}


@pytest.mark.parametrize("content", ["no JSON\n", '{"loss": 1}\n', "\0\n"])
def test_of_a_damaged_file_there_is_no_last_step(tmp_path: Path, content: str) -> None:
    (tmp_path / METRICS).write_text(content)
    assert last_step(tmp_path) == 0


# -- writing -------------------------------------------------------------------------------------


@SAME_FOLDER
@given(st.integers(0, 10), st.data())
def test_a_run_that_goes_on_leaves_each_row_once(
    tmp_path: Path, saved: int, data: st.DataObject
) -> None:
    """A kill may cut the file anywhere after the checkpoint, even in the middle of a row.

    The rows up to the checkpoint do not change, byte for byte.
    """
    write_rows(tmp_path, range(1, saved + 1))
    path = tmp_path / METRICS
    before = path.read_bytes()
    later = b"".join(b'{"step": %d}\n' % step for step in range(saved + 1, 12))
    content = before + later
    path.write_bytes(content[: data.draw(st.integers(len(before), len(content)))])

    writer = MetricsWriter(tmp_path, saved)
    assert path.read_bytes() == before
    assert writer.last.get("step", 0) == saved
    writer.write({"step": saved + 1})
    writer.close()
    assert steps_of(read_metrics(tmp_path)) == list(range(1, saved + 2))
    assert path.read_bytes().endswith(b"\n")


def test_a_damaged_file_is_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / METRICS
    path.write_text("not json\n")
    with refused(f"{METRICS} line 1"):
        MetricsWriter(tmp_path, 5)
    assert path.read_text() == "not json\n"


def test_rows_follow_one_another_whoever_cuts_or_adds(tmp_path: Path) -> None:
    """A new row leaves no hole after a truncation, and overwrites no row of another writer."""
    writer = MetricsWriter(tmp_path)
    writer.write({"step": 1, "train/loss": 1.0})
    (tmp_path / METRICS).write_bytes(b"")
    writer.write({"step": 2, "train/loss": 1.0})
    with (tmp_path / METRICS).open("ab") as other:
        other.write(b'{"step": 3}\n')
    writer.write({"step": 4, "train/loss": 1.0})
    writer.close()
    assert steps_of(read_metrics(tmp_path)) == [2, 3, 4]
