"""Tests of the checks before a run starts, and of the acquisition of its folder."""

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest
from support.configs import composed
from support.refused import refused

from rope_exp import prepare, sweep
from rope_exp.commands import plan
from rope_exp.compose import resolve
from rope_exp.config import RunConfig
from rope_exp.sweep import DispatchedRun, acquire, acquire_or_refuse, admit

OnCpu = Callable[..., RunConfig]


@pytest.fixture
def on_cpu(tiny: Callable[..., RunConfig]) -> OnCpu:
    """Return `on_cpu`: `on_cpu("pe=vo_rope")` is the small run's config, resolved for a CPU."""
    return lambda *overrides: resolve(tiny("launch.device=cpu", *overrides))


@pytest.fixture
def begun(on_cpu: OnCpu) -> DispatchedRun:
    """Return a run whose folder was made, and which no process is running."""
    return begin(on_cpu())


def begin(config: RunConfig) -> DispatchedRun:
    [run] = admit([config])
    assert acquire(run)
    run.unlock()
    return run


def write_rows(folder: Path, num_steps: int) -> None:
    rows = [f'{{"step": {step}, "train/loss": 1}}\n' for step in range(1, num_steps + 1)]
    (folder / "metrics.jsonl").write_text("".join(rows))


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("seed=4", "seed: 0 -> 4"),
        ("train.stages=[[16,4],[32,2]]", "train.stages: null -> [[16, 4], [32, 2]]"),
        ("pe=vo_rope", "pe.rotate: "),
    ],
)
def test_another_config_on_an_old_folder_is_refused(
    begun: DispatchedRun, on_cpu: OnCpu, override: str, words: str
) -> None:
    """The error names the key with its old and new value; nothing in the folder changes."""
    before = {path: path.read_bytes() for path in begun.folder.rglob("*")}
    with refused(words, "move the folder away"):
        admit([on_cpu(override)])
    assert {path: path.read_bytes() for path in begun.folder.rglob("*")} == before


def test_a_group_takes_no_run_of_another_config(
    on_cpu: OnCpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["run.group=mine", "pe=vo_rope", "optim.lr=0.5"]
    begin(on_cpu(words[0]).replace("run", dir=None))
    with refused("run.group=mine: holds runs of another config (optim.lr: 0.003 -> 0.5)"):
        admit([on_cpu(*words).replace("run", dir=None)])
    assert not (tmp_path / "results/runs/mine/vo_rope").exists()


def test_a_stage_longer_than_the_corpus_is_refused(on_cpu: OnCpu) -> None:
    config = on_cpu("train.stages=[[16,5],[9000000,1,1]]")
    with refused("train.stages=[[16, 5], ", "a window needs 9000001 tokens and the corpus has"):
        admit([config])


def test_a_run_is_handed_the_folder_of_its_corpus(
    on_cpu: OnCpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each corpus is prepared once, and again if the cache was emptied before a run resumes."""
    make = Mock(wraps=prepare._make)
    monkeypatch.setattr(prepare, "_make", make)
    monkeypatch.setattr(subprocess, "Popen", started := Mock())

    def folders() -> list[Path | None]:
        """Admit and start four runs; return the folders that their ranks are handed."""
        cache = f"data.cache_dir={tmp_path / 'cache'}"
        configs = [on_cpu(cache), on_cpu(cache, "pe=nope"), on_cpu(cache, "data.max_tokens=999")]
        configs.append(resolve(composed("data=copy", "launch.device=cpu")))
        places = [str(tmp_path / f"run{number}") for number in range(len(configs))]
        pairs = zip(configs, places, strict=True)
        handed = []
        for run in admit([config.replace("run", dir=place) for config, place in pairs]):
            run.start()
            folder, *corpus = started.call_args.args[0][3:]
            assert folder == str(run.folder)
            handed.append(Path(*corpus) if corpus else None)
        return handed

    first, second, other, generated = folders()
    assert first is not None
    assert other is not None
    assert first == second
    assert first != other
    assert generated is None
    assert make.call_count == 2

    shutil.rmtree(tmp_path / "cache")
    assert folders() == [first, second, other, None]
    assert first.exists()
    assert make.call_count == 4


def test_a_folder_is_acquired_by_one_after_another(
    monkeypatch: pytest.MonkeyPatch, on_cpu: OnCpu
) -> None:
    """A run of a sweep is left to the other command; the one run of a command is refused."""
    monkeypatch.setattr(sweep, "LOCK_SECONDS", 0.2)
    [first] = admit([on_cpu()])
    [second] = admit([on_cpu()])
    assert acquire(first)
    assert not acquire(second)
    assert second.status == "waiting"
    with refused("another process is running this run"):
        acquire_or_refuse(second)
    assert [path.name for path in first.folder.parent.iterdir()] == [first.folder.name]
    first.unlock()
    acquire_or_refuse(second)
    second.unlock()


def test_a_start_killed_as_it_wrote_its_config_blocks_none(on_cpu: OnCpu) -> None:
    config = on_cpu()
    config.folder.mkdir()
    (config.folder / ".lock").touch()
    (config.folder / ".config.yaml.new").write_text("seed: ")
    begin(config)
    assert sorted(path.name for path in config.folder.iterdir()) == [".lock", "config.yaml"]


def test_runs_of_two_configs_do_not_enter_one_group(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, on_cpu: OnCpu
) -> None:
    """Both were admitted before either began."""
    monkeypatch.chdir(tmp_path)
    words = (["pe=nope", "optim.lr=0.001"], ["pe=vo_rope", "optim.lr=0.003"])
    runs = [admit([on_cpu("run.group=g", *more).replace("run", dir=None)])[0] for more in words]
    assert acquire(runs[0])
    with refused("run.group=g", "optim.lr: 0.001 -> 0.003"):
        acquire(runs[1])


SHARED = {
    "run.dir": ("pe=nope", "run.dir=x", "(nope-s0) would share it; leave run.dir out, or name in"),
    "run.group": ("optim.lr=0.1", "run.group=g", "leave run.group out, or name in it what is swe"),
    "no key": ("pe.rotate=[q]", "pe.name=Mine", "give each variant a pe.name of its own"),
    "one run": ("seed=0", "run.group=g", "they are one and the same: name each value once"),
}


@pytest.mark.parametrize("case", SHARED)
def test_runs_of_one_sweep_that_share_a_folder_are_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, case: str
) -> None:
    """The error says what sets them apart; `plan` gives it, too."""
    swept, fixed, remedy = SHARED[case]
    monkeypatch.chdir(tmp_path)
    configs = [resolve(composed("launch.device=cpu", fixed, *more)) for more in ((), (swept,))]
    with refused("run.dir=", "two runs of the sweep (", remedy):
        admit(configs)
    if case == "run.dir":
        with refused("run.dir=", "two runs of the sweep (", remedy):
            plan.main(["-m", "pe=qk_rope,nope", fixed])
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_the_place_of_a_runs_folder_is_refused(on_cpu: OnCpu) -> None:
    config = on_cpu()
    config.folder.write_text("a file")
    with refused(f"run.dir={config.folder}: is a file, and a run needs a folder"):
        admit([config])


def test_a_run_that_lost_its_checkpoints_is_refused(begun: DispatchedRun, on_cpu: OnCpu) -> None:
    """A run that was killed before its first save, due at step 2, may begin anew."""
    write_rows(begun.folder, 3)
    with refused("has metrics up to step 3 and no checkpoint; restore"):
        admit([begun.config])
    (begun.folder / "checkpoints" / "step_00000002").mkdir(parents=True)
    admit([begun.config])

    (begun.folder / "checkpoints" / "step_00000002").rmdir()
    write_rows(begun.folder, 2)
    begin(on_cpu("train.save_every=6"))
    write_rows(begun.folder, 4)
    # Keys that change no number may change, and more than once.
    for _ in range(2):
        begin(on_cpu("train.save_every=2", "launch.num_processes=2"))
