"""metrics.jsonl: whole rows in step order, none twice, wherever a writer or a reader stands."""

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.refused import refused

from rope_exp.run.metrics import METRICS, MetricsTail, MetricsWriter, last_step, read_metrics

SAME_FOLDER = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


def write_rows(folder: Path, steps: Iterable[int]) -> dict[str, Any]:
    """Write rows of these steps.

    Returns:
        The mark of the file.
    """
    writer = MetricsWriter(folder)
    for step in steps:
        writer.write({"step": step, "train/loss": 1 / step})
    mark = writer.mark()
    writer.close()
    return mark


def steps_of(rows: Iterable[dict[str, Any]]) -> list[int]:
    return [row["step"] for row in rows]


# -- read ----------------------------------------------------------------------------------------


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
    assert last_step(tmp_path) == 0


@given(st.lists(st.integers(0, 60), max_size=12), st.integers(0, 8))
def test_a_growing_file_is_read_row_by_row(
    tmp_path_factory: pytest.TempPathFactory, cuts: list[int], num_rows: int
) -> None:
    """Whatever pieces the writer writes, each row is handed out once, as soon as it is whole."""
    path = tmp_path_factory.mktemp("tail") / METRICS
    lines = [json.dumps({"step": step}) + "\n" for step in range(1, num_rows + 1)]
    content = "".join(lines) + '{"step"'
    tail = MetricsTail(path)
    assert tail.poll() == []

    seen: list[int] = []
    with path.open("w") as file:
        for left, right in zip([0, *sorted(cuts)], [*sorted(cuts), None], strict=True):
            file.write(content[left:right])
            file.flush()
            seen += steps_of(tail.poll())
            assert not tail.restarted
            num_whole = content[:right].count("\n")
            assert seen == list(range(1, num_whole + 1))


def test_a_file_that_was_cut_back_is_read_again(tmp_path: Path) -> None:
    """A run that goes on cuts the rows behind its checkpoint, and writes them once more."""
    tail = MetricsTail(tmp_path / METRICS)
    mark = write_rows(tmp_path, (1, 2))
    write_rows(tmp_path, (1, 2, 3, 4))
    assert steps_of(tail.poll()) == [1, 2, 3, 4]

    writer = MetricsWriter(tmp_path, mark)
    assert steps_of(tail.poll()) == [1, 2]
    assert tail.restarted
    writer.write({"step": 3})
    writer.close()
    assert steps_of(tail.poll()) == [3]
    assert not tail.restarted


def test_a_damaged_line_is_met_again_and_named_by_its_number(tmp_path: Path) -> None:
    path = tmp_path / METRICS
    path.write_text('{"step": 1}\n')
    tail = MetricsTail(path)
    assert steps_of(tail.poll()) == [1]
    path.write_text('{"step": 1}\n{"step": 2}\nnot json\n')
    for _ in range(2):
        with refused(f"{METRICS} line 3"):
            tail.poll()


# -- written -------------------------------------------------------------------------------------


@SAME_FOLDER
@given(st.integers(0, 10), st.data())
def test_a_run_that_goes_on_leaves_each_row_once(
    tmp_path: Path, marked: int, data: st.DataObject
) -> None:
    """Wherever the file was cut after the mark, in the middle of a row perhaps, as kills do."""
    mark = write_rows(tmp_path, range(1, marked + 1))
    path = tmp_path / METRICS
    later = b"".join(b'{"step": %d}\n' % step for step in range(marked + 1, 12))
    content = path.read_bytes() + later
    path.write_bytes(content[: data.draw(st.integers(mark["bytes"], len(content)))])

    writer = MetricsWriter(tmp_path, mark)
    assert writer.mark() == mark
    assert writer.last.get("step", 0) == marked
    writer.write({"step": marked + 1})
    writer.close()
    assert steps_of(read_metrics(tmp_path)) == list(range(1, marked + 2))
    assert path.read_bytes().endswith(b"\n")


@SAME_FOLDER
@given(st.integers(0, 7), st.data())
def test_rows_before_the_mark_that_were_changed_are_refused(
    tmp_path: Path, bit: int, data: st.DataObject
) -> None:
    """One bit flipped or the end cut off; the file is left as it was found."""
    mark = write_rows(tmp_path, range(1, 6))
    path = tmp_path / METRICS
    content = bytearray(path.read_bytes())
    place = data.draw(st.integers(0, len(content) - 1))
    if data.draw(st.booleans()):
        content[place] ^= 1 << bit
    else:
        del content[place:]
    path.write_bytes(content)
    with refused(f"{METRICS} was changed"):
        MetricsWriter(tmp_path, mark)
    assert path.read_bytes() == content


@pytest.mark.parametrize("harm", ["removed", "cut", "moved", "replaced"])
def test_rows_that_are_taken_away_are_noticed(tmp_path: Path, harm: str) -> None:
    """While they are written, and before a checkpoint vouches for them."""
    folder = tmp_path / "run"
    folder.mkdir()
    path = folder / METRICS
    writer = MetricsWriter(folder)
    writer.write({"step": 1})
    writer.mark()
    if harm == "removed":
        path.unlink()
    elif harm == "cut":
        os.truncate(path, 3)
    elif harm == "moved":
        folder.rename(tmp_path / "elsewhere")
    else:
        path.rename(folder / "kept")
        path.write_bytes((folder / "kept").read_bytes())
    with pytest.raises(OSError, match="was moved, replaced or cut"):
        writer.close()


@pytest.mark.parametrize("harm", ["cut", "appended"])
def test_no_hole_and_no_mark_of_anothers_rows(tmp_path: Path, harm: str) -> None:
    """The file is cut, or another process appends to it, and then the run writes its next row."""
    path = tmp_path / METRICS
    writer = MetricsWriter(tmp_path)
    for step in (1, 2):
        writer.write({"step": step})
    if harm == "cut":
        os.truncate(path, len('{"step": 1}\n'))
    else:
        with path.open("a") as file:
            file.write('{"step": 3}\n')

    writer.write({"step": 4})
    assert b"\0" not in path.read_bytes()
    assert steps_of(read_metrics(tmp_path)) == ([1, 4] if harm == "cut" else [1, 2, 3, 4])
    with pytest.raises(OSError, match="was moved, replaced or cut"):
        writer.close()
