"""Placing runs on a machine: what `auto` becomes, and GPUs that one run at a time may hold."""

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from rope_exp.config.compose import run_config
from rope_exp.config.run import RunConfig
from rope_exp.launch import leases
from rope_exp.launch import sweep as launch
from rope_exp.system import machine
from rope_exp.system.errors import ConfigError


def show_gpus(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """A driver that lists `count` GPUs of compute capability 9.0 and 80 GiB, with their numbers for UUIDs."""
    values = {"uuid": None, "compute_cap": "9.0", "memory.total": "81920 MiB"}
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(
        machine,
        "_nvidia_smi",
        lambda *columns: [
            tuple(values.get(name) or str(gpu) for name in columns) for gpu in range(count)
        ],
    )


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    show_gpus(monkeypatch, 2)
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))


def settled(*overrides: str) -> RunConfig:
    return machine.settle(run_config(overrides))


def test_on_two_gpus_each_run_takes_one_and_two_run_at_a_time(two_gpus: None) -> None:
    config = settled()
    assert (config.launch.device, config.launch.num_processes, config.launch.max_parallel) == (
        "cuda",
        1,
        2,
    )
    assert (config.train.precision, config.train.deterministic) == ("bf16", False)


def test_all_gpus_give_one_run_every_gpu(two_gpus: None) -> None:
    config = settled("launch=all_gpus")
    assert (config.launch.num_processes, config.launch.max_parallel) == (2, 1)


def test_more_processes_than_gpus_are_refused(two_gpus: None) -> None:
    with pytest.raises(ConfigError, match=r"launch.num_processes=3: this machine shows 2 GPUs"):
        settled("launch.num_processes=3", "train.global_batch_size=9")


def test_without_a_gpu_a_run_is_deterministic_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    config = settled()
    assert (config.launch.device, config.launch.max_parallel, config.train.deterministic) == (
        "cpu",
        1,
        True,
    )
    with pytest.raises(ConfigError, match="shows no GPU"):
        settled("launch=one_gpu_each")


@pytest.mark.parametrize(
    ("flags", "precision"),
    [("avx2 avx512f", "fp32"), ("amx_bf16", "bf16"), ("avx512_bf16", "bf16")],
)
def test_bf16_on_a_cpu_only_where_its_flags_have_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, flags: str, precision: str
) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(f"model name : test\nflags : {flags}\n")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr(machine, "CPU_INFO", cpuinfo)
    assert settled().train.precision == precision


def test_compiling_is_for_runs_that_compute_enough_to_pay_it_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr(
        machine.shutil, "which", lambda name: None if name == "nvidia-smi" else name
    )
    assert settled("train.num_steps=10000").train.compile is True
    assert settled("train.num_steps=20").train.compile is False
    assert settled("train.num_steps=20", "model=10m").train.compile is True
    assert settled("train.num_steps=20", "train.compile=true").train.compile is True
    monkeypatch.setattr(machine.shutil, "which", lambda name: None)
    assert settled("train.num_steps=10000").train.compile is False


def test_a_gpu_is_leased_once_and_again_after_it_is_given_back(two_gpus: None) -> None:
    config = settled()
    first, second = leases.lease_gpus(config), leases.lease_gpus(config)
    assert first is not None
    assert second is not None
    assert {first[0].gpu, second[0].gpu} == {"0", "1"}
    assert leases.lease_gpus(config) is None
    first[0].release()
    third = leases.lease_gpus(config)
    assert third is not None
    assert third[0].gpu == first[0].gpu
    second[0].release()
    third[0].release()


def test_a_run_of_two_gpus_waits_for_both_and_holds_none_meanwhile(two_gpus: None) -> None:
    both, one = settled("launch=all_gpus"), settled()
    held = leases.lease_gpus(one)
    assert held is not None
    assert leases.lease_gpus(both) is None
    other = leases.lease_gpus(one)  # the refused run left the free one free
    assert other is not None
    held[0].release()
    other[0].release()
    taken = leases.lease_gpus(both)
    assert taken is not None
    assert [lease.gpu for lease in taken] == ["0", "1"]
    for lease in taken:
        lease.release()


def test_a_lease_lives_as_long_as_a_child_that_inherited_it(two_gpus: None) -> None:
    import subprocess
    import sys

    config = settled("launch=all_gpus")
    taken = leases.lease_gpus(config)
    assert taken is not None
    child = subprocess.Popen(
        [sys.executable, "-c", "input()"],
        stdin=subprocess.PIPE,
        pass_fds=[lease.descriptor for lease in taken],
    )
    for lease in taken:
        lease.release()  # as when the dispatcher dies
    assert leases.lease_gpus(config) is None
    child.communicate(b"\n", timeout=30)
    again = leases.lease_gpus(config)
    assert again is not None
    for lease in again:
        lease.release()


def test_cpu_runs_need_no_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert leases.lease_gpus(settled()) == []


def test_gpus_are_read_from_the_environment_first(monkeypatch: pytest.MonkeyPatch) -> None:
    show_gpus(monkeypatch, 4)
    assert machine.gpus() == ["0", "1", "2", "3"]
    for value, expected in (
        ("", []),
        ("-1", []),
        ("3", ["3"]),
        ("0, 2", ["0", "2"]),
        ("2,7,1", ["2"]),  # what follows a number that no GPU has is hidden, as CUDA has it
        ("GPU-ab,GPU-cd", ["GPU-ab", "GPU-cd"]),
    ):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
        assert machine.gpus() == expected


def test_without_a_driver_there_is_no_gpu_whatever_the_environment_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    show_gpus(monkeypatch, 0)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    assert machine.gpus() == []
    assert settled().launch.device == "cpu"


def test_a_run_that_no_gpu_here_can_hold_is_refused_with_both_numbers(two_gpus: None) -> None:
    huge = (
        "model.hidden_size=65536",
        "model.num_attention_heads=512",
        "model.num_key_value_heads=512",
    )
    config = settled(*huge)
    with pytest.raises(
        ConfigError, match=r"model=nano: .* about 1,0\d\d GiB, and a GPU here has 80"
    ):
        machine.check_memory(config, 257, 1)


def test_a_container_has_the_memory_that_its_limit_says(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    limit = tmp_path / "memory.max"
    monkeypatch.setattr(machine, "CGROUP_LIMIT", limit)
    installed = machine.memory_size()
    limit.write_text("max\n")
    assert machine.memory_size() == installed
    limit.write_text(f"{2**28}\n")
    assert machine.memory_size() == 2**28


# -- folders ----------------------------------------------------------------------------------------------------------


def cell(config: RunConfig) -> launch.Cell:
    return launch.Cell(config, config.folder)


OTHER = [
    ("seed=4", "seed: 0 -> 4"),
    ("data.holdout_fraction=0.3", "data.holdout_fraction: 0.2 -> 0.3"),
    ("data.max_tokens=5000", "data.max_tokens: null -> 5000"),
    ("data.seed=7", "data.seed: null -> 7"),
    ("tokenizer=bpe_2k", "tokenizer.kind: bytes -> bpe"),
    ("train.global_batch_size=8", "train.global_batch_size: 4 -> 8"),
    ("train.seq_len=32", "train.seq_len: 16 -> 32"),
    ("train.num_steps=7", "train.num_steps: 6 -> 7"),
    ("train.micro_batch_size=1", "train.micro_batch_size: null -> 1"),
    ("pe=vo_rope", "pe.rotate: "),
    ("pe.base=500000", "pe.base: 10000.0 -> 500000.0"),
    ("model.hidden_size=64", "model.hidden_size: 32 -> 64"),
    ("model.num_hidden_layers=3", "model.num_hidden_layers: 2 -> 3"),
    ("optim.lr=0.1", "optim.lr: 0.003 -> 0.1"),
    ("schedule.final_fraction=0.5", "schedule.final_fraction: "),
]
HARMLESS = [
    "tracker=wandb", "tracker.project=other", "train.log_every=3", "train.save_every=5", "train.keep_checkpoints=7",
    "launch.num_processes=2", "run.group=elsewhere", "train.peak_tflops=100",
]  # fmt: skip


@pytest.mark.parametrize(("override", "words"), OTHER, ids=[override for override, _ in OTHER])
def test_another_config_on_an_old_folder_is_refused_by_key_with_the_old_and_the_new_value(
    tiny: Callable[..., RunConfig], override: str, words: str
) -> None:
    first = cell(machine.settle(tiny("launch.device=cpu")))
    assert launch.claim(first)
    launch.unlock(first)
    before = {path: path.read_bytes() for path in first.folder.rglob("*")}
    with pytest.raises(ConfigError, match=re.escape(words)) as refused:
        launch.plan([machine.settle(tiny("launch.device=cpu", override))])
    assert "run.fresh=true" in str(refused.value)
    assert str(refused.value).count("\n") == 0
    assert {path: path.read_bytes() for path in first.folder.rglob("*")} == before


@pytest.mark.parametrize("override", HARMLESS)
def test_a_key_that_cannot_change_a_number_may_change_on_an_old_folder(
    tiny: Callable[..., RunConfig], override: str
) -> None:
    first = cell(machine.settle(tiny("launch.device=cpu")))
    assert launch.claim(first)
    launch.unlock(first)
    [again] = launch.plan([machine.settle(tiny("launch.device=cpu", override))])
    assert launch.claim(again)
    launch.unlock(again)


def test_a_folder_is_claimed_by_one_and_looked_at_again_by_the_next(
    tiny: Callable[..., RunConfig],
) -> None:
    config = machine.settle(tiny("launch.device=cpu"))
    first, second = cell(config), cell(config)
    assert launch.claim(first)
    assert not launch.claim(second)
    assert second.status == "elsewhere"
    launch.unlock(first)
    assert launch.claim(second)
    launch.unlock(second)


def test_a_start_that_was_killed_while_it_wrote_its_config_does_not_block_the_next(
    tiny: Callable[..., RunConfig],
) -> None:
    config = machine.settle(tiny("launch.device=cpu"))
    config.folder.mkdir()
    (config.folder / ".lock").touch()
    (config.folder / ".config.yaml.new").write_text("seed: ")
    [again] = launch.plan([config])
    assert launch.claim(again)
    launch.unlock(again)
    assert sorted(path.name for path in config.folder.iterdir()) == [".lock", "config.yaml"]


def test_two_hundred_runs_are_planned_at_the_cost_of_one_corpus(
    tiny: Callable[..., RunConfig], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    prepared, prepare = [], launch.prepare
    monkeypatch.setattr(launch, "prepare", lambda *a, **k: prepared.append(a) or prepare(*a, **k))
    base = machine.settle(tiny("launch.device=cpu"))
    configs = [
        dataclasses.replace(
            base, seed=seed, run=dataclasses.replace(base.run, dir=str(tmp_path / f"run{seed}"))
        )
        for seed in range(200)
    ]
    assert len(launch.plan(configs)) == 200
    assert len(prepared) == 1


@pytest.mark.parametrize("harm", ["removed", "linked"])
def test_a_run_that_lost_its_checkpoints_is_refused_and_its_curve_is_kept(
    tiny: Callable[..., RunConfig], tmp_path: Path, harm: str
) -> None:
    first = cell(machine.settle(tiny("launch.device=cpu")))
    assert launch.claim(first)
    launch.unlock(first)
    metrics = first.folder / "metrics.jsonl"
    metrics.write_text("".join(f'{{"step": {step}}}\n' for step in (1, 2)))
    [again] = launch.plan([first.config])  # killed before the save of step 2
    assert again.exit_code is None
    metrics.write_text(metrics.read_text() + '{"step": 3}\n')
    if harm == "linked":
        (tmp_path / "larger" / "step_00000002").mkdir(parents=True)
        (first.folder / "checkpoints").mkdir()
        (first.folder / "checkpoints/step_00000002").symlink_to(
            tmp_path / "larger" / "step_00000002"
        )
    with pytest.raises(ConfigError, match="has metrics up to step 3 and no checkpoint; restore"):
        launch.plan([first.config])
    (first.folder / "checkpoints" / "step_00000002").unlink(missing_ok=True)
    (first.folder / "checkpoints" / "step_00000002").mkdir(parents=True)
    launch.plan([first.config])


def test_a_run_killed_before_its_first_save_may_save_more_often_and_is_not_refused_twice(
    tiny: Callable[..., RunConfig],
) -> None:
    first = cell(machine.settle(tiny("launch.device=cpu", "train.save_every=6")))
    assert launch.claim(first)
    launch.unlock(first)
    (first.folder / "metrics.jsonl").write_text(
        "".join(f'{{"step": {step}}}\n' for step in (1, 2, 3, 4))
    )
    for _ in range(2):  # each ends before it trains
        [again] = launch.plan([machine.settle(tiny("launch.device=cpu", "train.save_every=2"))])
        assert launch.claim(again)
        launch.unlock(again)
