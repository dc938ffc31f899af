"""End-to-end tests of refusals, which take one line and come before anything is written."""

import resource
from pathlib import Path

import pytest
from support.runs import train

USAGE = [
    (["modl=1b"], "modl"),
    (["train.num_steps=0"], "train.num_steps=0"),
    (["data=files", "data.path=nowhere"], "data.path=nowhere"),
    (["train.global_batch_size=3", "launch.num_processes=2"], "train.global_batch_size=3"),
    (["launch=one_gpu_each"], "launch.device=cuda"),
    (["-m", "pe=glob(*)", "run.dir=same"], "run.dir=same"),
]


def cpu_seconds() -> float:
    """Return the CPU seconds of finished child processes, which other load does not affect."""
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    return spent.ru_utime + spent.ru_stime


@pytest.mark.parametrize(("overrides", "named"), USAGE, ids=[" ".join(case[0]) for case in USAGE])
def test_a_mistake_answers_at_once_and_writes_nothing(
    tmp_path: Path, overrides: list[str], named: str
) -> None:
    before = cpu_seconds()
    done = train(
        *overrides, cwd=tmp_path, CUDA_VISIBLE_DEVICES="", ROPE_EXP_CACHE=str(tmp_path / "cache")
    )
    assert done.returncode == 2, done.stderr
    # A missing corpus is found after the model is counted, and a sweep composes each of its runs.
    limit = {"data.path=nowhere": 8, "run.dir=same": 12}.get(named, 3)
    assert cpu_seconds() - before < limit
    assert done.stderr.startswith(f"error: {named}")
    assert done.stderr.count("\n") == 1
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_group_takes_no_run_of_another_config(tmp_path: Path, tiny_overrides: list[str]) -> None:
    command = [
        *(word for word in tiny_overrides if "run.dir" not in word),
        "run.group=mine",
        "train.num_steps=1",
    ]
    assert train(*command, cwd=tmp_path).returncode == 0
    done = train(*command, "pe=vo_rope", "optim.lr=0.5", cwd=tmp_path)
    assert done.returncode == 2
    assert "run.group=mine: holds runs of another config (optim.lr: 0.003 -> 0.5)" in done.stderr
    assert not (tmp_path / "results/runs/mine/vo_rope").exists()
