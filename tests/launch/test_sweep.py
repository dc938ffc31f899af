"""Tests of launch.max_parallel, which limits the runs beside a run."""

from typing import Any

import pytest

from rope_exp.compose import run_config
from rope_exp.jobs import Job
from rope_exp.sweep import _has_place

CONFIG = run_config(["launch.device=cpu"])


def job(max_parallel: int, *, is_running: bool = False) -> Job:
    ranks: list[Any] = [object()] if is_running else []
    return Job(CONFIG.replace("launch", max_parallel=max_parallel), ranks=ranks)


@pytest.mark.parametrize(
    ("mine", "running", "may_start"),
    [(2, [], True), (2, [2], True), (2, [2, 2], False), (1, [2], False), (2, [1], False)],
)
def test_as_many_run_as_each_of_them_allows(mine: int, running: list[int], may_start: bool) -> None:
    others = [job(each, is_running=True) for each in running]
    assert _has_place(job(mine), others) == may_start
