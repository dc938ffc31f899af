"""End-to-end tests of training, with real signals and files."""

import json
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from support.refused import refused
from support.reports import FINISHED
from support.runs import Trial, assert_same_losses, kill_the_tree, train

from rope_exp.commands._rank import run_as_rank
from rope_exp.compose import run_config
from rope_exp.config import RunConfig
from rope_exp.files import read_json
from rope_exp.folder import read_metrics
from rope_exp.sweep import dispatch


def test_a_run_folder_holds_what_the_contract_says(whole: tuple[Path, list[str]]) -> None:
    folder, _ = whole
    assert {"config.yaml", "env.json", "metrics.jsonl", "checkpoints", "result.json"} <= set(
        os.listdir(folder)
    )
    # log.txt holds the run's messages in order.
    first, *_, last = (folder / "log.txt").read_text().splitlines()
    assert first.startswith("vo_rope-s0: vo_rope nano, 37,088 parameters, on files, 60 steps, on ")
    assert last.startswith("vo_rope-s0: finished, val/loss ")
    result = read_json(folder / "result.json")
    assert set(result) == {*FINISHED, "shared_init_sha256"}
    assert result["status"] == "finished"
    assert result["steps"] == 60
    assert result["pe"] == "vo_rope"
    assert result["rotate"] == ["v", "o"]
    assert result["tokens"] == 60 * 4 * 16
    rows = read_metrics(folder)
    assert [row["step"] for row in rows] == list(range(1, 61))
    assert [row["step"] for row in rows if "val/loss" in row] == [30, 60]
    keys = {"step", "tokens", "train/loss", "lr", "grad_norm", "tokens_per_s", "mfu", "elapsed_s"}
    assert all(set(row) - {"val/loss"} == keys for row in rows)
    assert sorted(os.listdir(folder / "checkpoints")) == ["step_00000050", "step_00000060"]
    env = read_json(folder / "env.json")
    assert env["certificate"]["measured"] == "invariant"
    assert env["world_size"] == 1
    assert env["deterministic"] is True
    assert re.fullmatch(r"[0-9a-f]{40}", env["git"]["commit"])


def test_the_first_ten_losses_are_the_stored_curve(
    tmp_path: Path, tiny_overrides: list[str]
) -> None:
    """A change that moves these float32 losses past rounding changes all numbers of the project."""
    stored = json.loads((Path(__file__).parent / "stored_curve.json").read_text())
    done = train(*tiny_overrides, "train.num_steps=10", "pe=qkvo_rope", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    losses = [row["train/loss"] for row in read_metrics(tmp_path / "run")]
    assert losses == pytest.approx(stored["train/loss"], abs=5e-5)


def test_killed_and_started_again_it_is_the_same_run(
    whole: tuple[Path, list[str]], tmp_path: Path
) -> None:
    """The dispatcher is killed with its child before a checkpoint, and alone after one."""
    folder, command = whole
    trial = Trial(command=tuple(command), folder=tmp_path / "run", undisturbed=folder)
    for rows, is_alone in ((3, False), (14, True)):
        process = trial.start(rows=rows)
        if is_alone:
            # Its child must then end, and release the run.
            process.kill()
        else:
            kill_the_tree(process.pid)
        process.communicate()
    trial.assert_goes_on()


@pytest.mark.parametrize("run", [lambda config: dispatch([config], [""])[0], run_as_rank])
def test_a_finished_run_is_not_run_again(
    whole: tuple[Path, list[str]],
    run: Callable[[RunConfig], int],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A launcher's rank says so, too."""
    folder, command = whole
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    words = [*command, f"run.dir={folder}"]
    assert run(run_config(words)) == 0
    stdout = capsys.readouterr().out
    assert f"{folder} is done: finished, val/loss" in stdout
    assert f"with run.init_from={folder}" in stdout
    with refused("belongs to another config (train.num_steps: 60 -> 999)"):
        run(run_config([*words, "train.num_steps=999"]))
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


def test_under_a_launcher_this_process_is_a_rank(
    whole: tuple[Path, list[str]], tmp_path: Path
) -> None:
    folder, command = whole
    done = train(
        *command,
        f"run.dir={tmp_path / 'run'}",
        "launch.device=cpu",
        "train.micro_batch_size=1",
        cwd=tmp_path,
        launcher=("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"),
    )
    assert done.returncode == 0, done.stderr
    assert read_json(tmp_path / "run" / "env.json")["world_size"] == 2
    ranks, alone = (read_json(path / "result.json") for path in (tmp_path / "run", folder))
    assert ranks["order_sha256"] == alone["order_sha256"]
    # Each of two ranks has two micro-batches: summing gradients within a rank and averaging them
    # between ranks must give the gradient of the whole batch.
    assert_same_losses(folder, tmp_path / "run", tolerance=2e-4)


@pytest.mark.parametrize(
    ("precision", "compiled", "bound"),
    [
        pytest.param("fp32", "true", 1e-4, marks=pytest.mark.torture),
        ("bf16", "false", 2e-2),
        pytest.param("bf16", "true", 2e-2, marks=pytest.mark.torture),
    ],
)
def test_bf16_and_compiling_stay_near_float32(
    whole: tuple[Path, list[str]], tmp_path: Path, precision: str, compiled: str, bound: float
) -> None:
    """The first six losses are within rounding of those of the plain fp32 run."""
    folder, command = whole
    words = [f"train.precision={precision}", f"train.compile={compiled}"]
    done = train(*command, *words, f"run.dir={tmp_path / 'run'}", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    losses = [row["train/loss"] for row in read_metrics(tmp_path / "run")]
    plain = [row["train/loss"] for row in read_metrics(folder)]
    assert losses[:6] == pytest.approx(plain[:6], abs=bound, rel=0)
