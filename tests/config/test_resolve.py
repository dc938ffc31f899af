"""Tests of resolving `auto` for a machine, and of refusing what it lacks."""

from pathlib import Path
from unittest import mock

import pytest
from support.configs import composed
from support.gpus import show_gpus
from support.refused import refused

from rope_exp import machine
from rope_exp.compose import check_memory, finalise, resolve
from rope_exp.config import RunConfig
from rope_exp.sweep import DispatchedRun, admit


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    show_gpus(monkeypatch, 2)
    monkeypatch.setattr("shutil.which", lambda name: name)


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


def settled(*overrides: str) -> RunConfig:
    return resolve(composed(*overrides))


def test_on_two_gpus_two_runs_of_one_rank_go_at_a_time(two_gpus: None) -> None:
    config = settled("train.num_steps=20")
    launch, train = config.launch, config.train
    assert launch.device == "cuda"
    assert launch.num_processes == 1
    assert launch.max_parallel == 2
    assert train.precision == "bf16"
    assert train.deterministic is False
    assert train.compile is True
    launch = settled("launch=all_gpus").launch
    assert launch.num_processes == 2
    assert launch.max_parallel == 1
    with refused("launch.num_processes=3: this machine shows 2 GPUs"):
        settled("launch.num_processes=3", "train.global_batch_size=9")


def test_without_a_gpu_a_run_is_deterministic(no_gpu: None) -> None:
    config = settled()
    assert config.launch.device == "cpu"
    assert config.launch.max_parallel == 1
    assert config.train.deterministic is True
    with refused("shows no GPU"):
        settled("launch=one_gpu_each")
    # A plan starts nothing.
    for words in (["launch=one_gpu_each"], ["launch.device=cuda", "launch.num_processes=8"]):
        assert finalise(composed(*words), for_plan=True).launch.device == "cuda"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], 1),
        (["launch.num_threads=1"], 8),
        (["launch.num_threads=3"], 2),
        (["launch.num_threads=16"], 1),
        (["launch.num_threads=2", "launch.num_processes=2"], 2),
        (["launch.num_threads=1", "launch.max_parallel=3"], 3),
    ],
)
def test_on_a_cpu_as_many_runs_go_at_a_time_as_have_cores(
    no_gpu: None, monkeypatch: pytest.MonkeyPatch, words: list[str], expected: int
) -> None:
    monkeypatch.setattr("rope_exp.compose.num_cores", lambda: 8)
    assert settled(*words).launch.max_parallel == expected


@pytest.mark.parametrize(
    ("flags", "precision"),
    [("avx2 avx512f", "fp32"), ("amx_bf16", "bf16"), ("avx512_bf16", "bf16")],
)
def test_bf16_on_a_cpu_only_where_its_flags_have_it(
    no_gpu: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, flags: str, precision: str
) -> None:
    cpu_info = tmp_path / "cpuinfo"
    cpu_info.write_text(f"model name : test\nflags : {flags}\n")
    monkeypatch.setattr(machine, "CPU_INFO", cpu_info)
    assert settled().train.precision == precision


def test_only_runs_that_pay_it_back_are_compiled(
    no_gpu: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run must compute enough, and the machine must have a compiler."""

    def which(name: str) -> str | None:
        return None if name == "nvidia-smi" else name

    monkeypatch.setattr("shutil.which", which)
    assert settled("train.num_steps=10000").train.compile is True
    assert settled("train.num_steps=20").train.compile is False
    assert settled("train.num_steps=20", "model=10m").train.compile is True
    assert settled("train.num_steps=20", "train.compile=true").train.compile is True

    monkeypatch.setattr("shutil.which", lambda name: None)
    assert settled("train.num_steps=10000").train.compile is False


def test_a_run_past_the_memory_of_a_cpu_asks_for_a_word(
    no_gpu: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plan describes it, a key starts it anyway, and processes share one memory."""
    monkeypatch.setattr("rope_exp.compose.total_memory", lambda: 23 * 2**30)
    large = composed("model=1b")
    with refused("launch.exceed_memory=false: this run needs about ", "GiB", "are 23.0; true"):
        finalise(large)
    assert finalise(large, for_plan=True).launch.device == "cpu"
    assert finalise(composed("model=1b", "launch.exceed_memory=true")).model.name == "1b"

    half = composed("model=1b", "launch.num_processes=2")
    monkeypatch.setattr("rope_exp.compose.total_memory", lambda: 80 * 2**30)
    assert finalise(large).model.name == "1b"
    with refused("launch.exceed_memory=false"):
        finalise(half)


def test_runs_at_a_time_and_local_ranks_share_the_memory(
    no_gpu: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Each run fits alone. Runs that are trained one after another do not share it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("rope_exp.compose.total_memory", lambda: 80 * 2**30)

    def sweep(*overrides: str) -> list[RunConfig]:
        return [finalise(composed("model=1b", f"seed={seed}", *overrides)) for seed in range(3)]

    with refused("launch.exceed_memory=false: 2 runs at a time (launch.max_parallel) need"):
        admit(sweep("launch.max_parallel=2"))
    with refused("launch.exceed_memory=false: 3 runs at a time (launch.max_parallel) need"):
        admit(sweep("launch.max_parallel=5"))
    check_memory(sweep("launch.max_parallel=1"))
    check_memory(sweep("launch.max_parallel=2")[:1])
    check_memory(sweep("launch.max_parallel=2", "launch.exceed_memory=true"))

    # Of four ranks, two are on this machine.
    ranks = composed("model=1b", "launch.num_processes=4")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    finalise(ranks, 4)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    with refused("launch.exceed_memory=false: this run needs"):
        finalise(ranks, 4)


def test_a_containers_limit_is_its_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without a limit the file says `max`, or there is no such file."""
    limit = tmp_path / "memory.max"
    monkeypatch.setattr(machine, "MEMORY_LIMITS", (limit, tmp_path / "nowhere"))
    whole = machine.total_memory()
    limit.write_text("max\n")
    assert machine.total_memory() == whole
    limit.write_text("4096\n")
    assert machine.total_memory() == 4096


@pytest.mark.parametrize(
    ("quota", "cores"),
    [("max 100000", 8), ("200000 100000", 2), ("50000 100000", 1), ("9900000 100000", 8)],
)
def test_a_containers_quota_is_its_cores(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, quota: str, cores: int
) -> None:
    path = tmp_path / "cpu.max"
    path.write_text(f"{quota}\n")
    monkeypatch.setattr(machine, "CPU_QUOTA", path)
    monkeypatch.setattr("os.sched_getaffinity", lambda process: range(8))
    assert machine.num_cores() == cores


@pytest.mark.parametrize("value", ["0", "abc", "-1", "2.5", "4,0"])
def test_a_number_of_threads_that_openmp_ignores_is_refused(
    no_gpu: None, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    """OpenMP would take all cores."""
    monkeypatch.setenv("OMP_NUM_THREADS", value)
    with refused(f"OMP_NUM_THREADS={value}: must be a number of threads from 1"):
        resolve(composed())
    assert resolve(composed("launch.num_threads=2")).launch.num_threads == 2


@pytest.mark.parametrize(("value", "threads"), [("", "3"), (" ", "3"), ("2", "2"), ("4,1", "4,1")])
def test_an_empty_number_of_threads_is_a_share_of_cores(
    no_gpu: None, monkeypatch: pytest.MonkeyPatch, value: str, threads: str
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", value)
    monkeypatch.setattr("rope_exp.sweep.num_cores", lambda: 3)
    with mock.patch("subprocess.Popen") as started:
        DispatchedRun(resolve(composed())).start()
    assert started.call_args.kwargs["env"]["OMP_NUM_THREADS"] == threads
