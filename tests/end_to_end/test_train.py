"""The command line end to end: real processes, real signals, real files."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from support.configs import NINE, REPOSITORY
from support.runs import (
    assert_same_run,
    final_weights,
    kill_alone,
    kill_the_tree,
    num_rows,
    start,
    train,
    wait_for,
)
from transformers import LlamaConfig, LlamaForCausalLM

from rope_exp import load_run
from rope_exp.run.metrics import read_metrics
from rope_exp.system.files import read_json


def test_a_run_folder_holds_what_the_contract_says(whole: tuple[Path, list[str]]) -> None:
    folder, _ = whole
    assert {"config.yaml", "env.json", "metrics.jsonl", "checkpoints", "result.json"} <= set(
        os.listdir(folder)
    )
    result = read_json(folder / "result.json")
    assert set(result) == {
        "status", "pe", "rotate", "seed", "params", "tokens", "steps", "val/loss", "train/loss_last", "init_sha256",
        "data_sha256", "order_sha256", "config_sha256", "group_sha256", "tokens_per_s", "mfu", "wall_s",
    }  # fmt: skip
    assert (result["status"], result["pe"], result["rotate"], result["steps"]) == (
        "finished",
        "vo_rope",
        ["v", "o"],
        60,
    )
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


def test_training_learns(whole: tuple[Path, list[str]]) -> None:
    rows = read_metrics(whole[0])
    assert rows[-1]["train/loss"] < rows[0]["train/loss"] - 0.5


def test_killed_at_any_moment_and_started_again_it_is_the_same_run(
    whole: tuple[Path, list[str]], tmp_path: Path
) -> None:
    folder, command = whole
    again = [*command, f"run.dir={tmp_path / 'run'}"]
    for rows_seen, kill in ((3, kill_the_tree), (14, kill_alone), (37, kill_the_tree)):
        process = start(*again, cwd=tmp_path)
        deadline = time.monotonic() + 60
        while (
            len(read_metrics(tmp_path / "run") if (tmp_path / "run").exists() else []) < rows_seen
        ):
            assert time.monotonic() < deadline
            assert process.poll() is None, process.communicate()
            time.sleep(0.005)
        kill(process.pid)
        process.communicate()
    done = train(*again, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert_same_run(folder, tmp_path / "run")


def test_a_finished_run_is_not_run_again(whole: tuple[Path, list[str]]) -> None:
    folder, command = whole
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    started = time.monotonic()
    done = train(*command, f"run.dir={folder}", cwd=folder.parent)
    assert done.returncode == 0
    assert "is done" in done.stdout
    assert time.monotonic() - started < 5
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


def test_two_processes_are_one_run_up_to_rounding(
    whole: tuple[Path, list[str]], tmp_path: Path
) -> None:
    folder, command = whole
    done = train(*command, f"run.dir={tmp_path / 'run'}", "launch.num_processes=2", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    one, two = (read_json(path / "result.json") for path in (folder, tmp_path / "run"))
    assert read_json(tmp_path / "run" / "env.json")["world_size"] == 2
    for key in ("order_sha256", "init_sha256", "data_sha256", "config_sha256"):
        assert one[key] == two[key]
    for left, right in zip(read_metrics(folder), read_metrics(tmp_path / "run"), strict=True):
        assert left["train/loss"] == pytest.approx(right["train/loss"], abs=2e-4)
    assert one["val/loss"] == pytest.approx(two["val/loss"], abs=2e-4)


def test_accumulating_micro_batches_is_one_run_up_to_rounding(
    whole: tuple[Path, list[str]], tmp_path: Path
) -> None:
    folder, command = whole
    done = train(*command, f"run.dir={tmp_path / 'run'}", "train.micro_batch_size=1", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for left, right in zip(read_metrics(folder), read_metrics(tmp_path / "run"), strict=True):
        assert left["train/loss"] == pytest.approx(right["train/loss"], abs=2e-4)


def test_under_a_launcher_this_process_is_a_rank(
    whole: tuple[Path, list[str]], tmp_path: Path
) -> None:
    folder, command = whole
    done = train(
        *command, f"run.dir={tmp_path / 'run'}", "launch.device=cpu", "train.micro_batch_size=1", cwd=tmp_path,
        launcher=("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert read_json(tmp_path / "run" / "env.json")["world_size"] == 2
    ranks, alone = (read_json(path / "result.json") for path in (tmp_path / "run", folder))
    assert ranks["order_sha256"] == alone["order_sha256"]
    # Two micro-batches on each of two processes: gradients are summed within, averaged between, and come out the same.
    for left, right in zip(read_metrics(folder), read_metrics(tmp_path / "run"), strict=True):
        assert left["train/loss"] == pytest.approx(right["train/loss"], abs=2e-4)


def test_a_sweep_under_a_launcher_is_refused_in_one_sentence(tmp_path: Path) -> None:
    done = train("-m", "pe=glob(*)", cwd=tmp_path, ACCELERATE_MIXED_PRECISION="no")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "every rank of `accelerate launch` would run the sweep" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_another_config_on_an_old_folder_is_refused_naming_each_key(
    whole: tuple[Path, list[str]],
) -> None:
    folder, command = whole
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    done = train(
        *command, f"run.dir={folder}", "seed=4", "optim.lr=0.5", "pe=qk_rope", cwd=folder.parent
    )
    assert done.returncode == 2
    for words in (
        "seed: 0 -> 4",
        "optim.lr: 0.003 -> 0.5",
        "pe.name: VO-RoPE -> QK-RoPE",
        "run.fresh=true",
    ):
        assert words in done.stderr
    assert done.stderr.count("\n") == 1
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_fresh_moves_the_old_folder_aside(tmp_path: Path, tiny_overrides: list[str]) -> None:
    assert train(*tiny_overrides, cwd=tmp_path).returncode == 0
    assert train(*tiny_overrides, "optim.lr=0.01", "run.fresh=true", cwd=tmp_path).returncode == 0
    assert read_json(tmp_path / ".run.old-1" / "result.json")["steps"] == 6
    changed = read_json(tmp_path / "run" / "result.json")["config_sha256"]
    assert changed != read_json(tmp_path / ".run.old-1" / "result.json")["config_sha256"]


def test_a_loss_that_is_not_finite_ends_the_run_as_diverged_before_the_update(
    tmp_path: Path, tiny_overrides: list[str]
) -> None:
    done = train(
        *tiny_overrides,
        "optim.lr=1e38",
        "train.save_every=1",
        "schedule.warmup_fraction=0",
        cwd=tmp_path,
    )
    assert done.returncode == 3
    result = read_json(tmp_path / "run" / "result.json")
    step = result["diverged_step"]
    assert result["status"] == "diverged"
    assert result["val/loss"] is None
    assert result["steps"] == step - 1
    assert all(row["step"] < step for row in read_metrics(tmp_path / "run"))
    assert (
        max(int(path.name[5:]) for path in (tmp_path / "run" / "checkpoints").glob("step_*"))
        <= step - 1
    )
    assert train(*tiny_overrides, "optim.lr=1e38", "train.save_every=1", "schedule.warmup_fraction=0",
                 cwd=tmp_path).returncode == 3  # fmt: skip


USAGE = [
    (["pe=nosuch"], "pe=nosuch"),
    (["pe.rotate=[x]"], "pe.rotate"),
    (["train.num_steps=0"], "train.num_steps=0"),
    (["data=files", "data.path=nowhere"], "data.path=nowhere"),
    (["train.global_batch_size=3", "launch.num_processes=2"], "train.global_batch_size=3"),
    (["train.micro_batch_size=3"], "train.micro_batch_size=3"),
    (["launch=one_gpu_each"], "launch.device=cuda"),
    (["-m", "pe=glob(*)", "run.dir=same"], "run.dir=same"),
]


@pytest.mark.parametrize(("overrides", "named"), USAGE, ids=[" ".join(case[0]) for case in USAGE])
def test_a_mistake_answers_at_once_in_one_sentence_and_writes_nothing(
    tmp_path: Path, overrides: list[str], named: str
) -> None:
    started = time.monotonic()
    done = train(
        *overrides, cwd=tmp_path, CUDA_VISIBLE_DEVICES="", ROPE_EXP_CACHE=str(tmp_path / "cache")
    )
    assert done.returncode == 2, done.stderr
    assert time.monotonic() - started < 4
    assert done.stderr.startswith(f"error: {named}")
    assert done.stderr.count("\n") == 1
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_length_past_the_corpus_is_refused_before_anything_is_written(
    tmp_path: Path, tiny_overrides: list[str]
) -> None:
    done = train(*tiny_overrides, "train.seq_len=1000000", cwd=tmp_path)
    assert done.returncode == 2
    assert "train.seq_len=1000000" in done.stderr
    assert not (tmp_path / "run").exists()


def test_no_space_is_said_before_the_start_with_exit_code_1(
    tmp_path: Path, tiny_overrides: list[str]
) -> None:
    done = train(
        *tiny_overrides, "train.keep_checkpoints=1000000000", cwd=tmp_path
    )  # some hundred TB
    assert done.returncode == 1
    assert "no space left in" in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_the_dispatching_process_never_imports_torch(
    tmp_path: Path, tiny_overrides: list[str]
) -> None:
    script = f"""
import runpy, sys
sys.argv = ["train.py", *{tiny_overrides!r}]
try:
    runpy.run_path({str(REPOSITORY / "train.py")!r}, run_name="__main__")
except SystemExit as end:
    assert end.code == 0, end.code
print("torch" in sys.modules)
"""
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.stdout.splitlines()[-1] == "False", done.stderr
    assert (tmp_path / "run" / "result.json").exists()


def test_the_nine_run_from_one_command_share_everything_but_the_rotation_and_become_a_table(
    tmp_path: Path, tiny_overrides: list[str]
) -> None:
    command = [
        *(word for word in tiny_overrides if "run.dir" not in word),
        "run.group=nine",
        "train.num_steps=4",
    ]
    done = train("+experiment=nine", *command, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    results = [read_json(tmp_path / f"results/runs/nine/{pe}/seed0/result.json") for pe in NINE]
    for key in ("init_sha256", "data_sha256", "order_sha256", "group_sha256", "params"):
        assert len({result[key] for result in results}) == 1, key
    assert len({result["val/loss"] for result in results}) == 9
    assert sorted(path.name for path in tmp_path.iterdir()) == ["results"]
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    report = [sys.executable, str(REPOSITORY / "scripts" / "report.py")]
    made = subprocess.run(report, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    assert len((tmp_path / "results" / "table.csv").read_text().splitlines()) == 10

    rerun_started = time.monotonic()
    assert train("+experiment=nine", *command, cwd=tmp_path).returncode == 0
    assert time.monotonic() - rerun_started < 5


def test_a_run_in_a_folder_that_is_being_run_is_refused(
    tmp_path: Path, tiny_overrides: list[str]
) -> None:
    command = [*tiny_overrides, "train.num_steps=100000"]
    process = start(*command, cwd=tmp_path)
    try:
        while not (tmp_path / "run" / "metrics.jsonl").exists():
            assert process.poll() is None, process.communicate()
            time.sleep(0.02)
        done = train(*command, cwd=tmp_path)
        assert done.returncode == 2
        assert "another process is running this run" in done.stderr
        before = sorted(path.name for path in tmp_path.iterdir())
        done = train(*command, "run.fresh=true", "optim.lr=0.5", cwd=tmp_path)
        assert done.returncode == 2
        assert "another process is running this run" in done.stderr
        assert sorted(path.name for path in tmp_path.iterdir()) == before
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)
    assert process.returncode == 75


def test_load_run_gives_the_newest_checkpoint_and_its_tokenizer(
    whole: tuple[Path, list[str]],
) -> None:
    model, tokenizer = load_run(whole[0])
    assert not model.training
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    ids = tokenizer.encode("Document 3. ").ids
    assert tokenizer.decode(ids) == "Document 3. "
    logits = model(torch.tensor([ids]))
    assert logits.shape == (1, len(ids), 257)
    older, _ = load_run(whole[0], step=50)
    assert not torch.equal(older(torch.tensor([ids])), logits)


def test_a_run_in_progress_can_be_opened_at_any_moment(
    tmp_path: Path, tiny_overrides: list[str]
) -> None:
    often = ("train.save_every=1", "train.keep_checkpoints=1", "train.num_steps=100000")
    process = start(*tiny_overrides, *often, cwd=tmp_path)
    wait_for(lambda: num_rows(tmp_path / "run") >= 5, process)
    for _ in range(150):
        load_run(tmp_path / "run")
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 75


def test_a_qk_checkpoint_loads_in_transformers_unchanged(
    tmp_path: Path, tiny_overrides: list[str]
) -> None:
    assert train(*tiny_overrides, "pe=qk_rope", cwd=tmp_path).returncode == 0
    ours, _ = load_run(tmp_path / "run")
    theirs = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=257, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
            num_key_value_heads=2, rms_norm_eps=1e-5, tie_word_embeddings=False,
        )
    )  # fmt: skip
    theirs.load_state_dict(final_weights(tmp_path / "run"))
    ids = torch.randint(0, 257, (2, 40), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert float((ours(ids) - theirs(ids).logits).abs().max()) < 2e-5


def test_the_first_ten_losses_are_the_stored_curve(
    tmp_path: Path, corpus: Path, tiny_overrides: list[str]
) -> None:
    # Float32 on any CPU; a change that moves these by more than rounding changes every number of the project.
    stored = json.loads((Path(__file__).parent / "stored_curve.json").read_text())
    done = train(*tiny_overrides, "train.num_steps=10", "pe=qkvo_rope", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    losses = [row["train/loss"] for row in read_metrics(tmp_path / "run")]
    assert losses == pytest.approx(stored["train/loss"], abs=5e-5)


def test_the_embedded_corpus_trains_a_few_steps_with_the_default_config(tmp_path: Path) -> None:
    done = train("train.num_steps=2", f"run.dir={tmp_path / 'run'}", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    env = read_json(tmp_path / "run" / "env.json")
    assert env["corpus"]["name"] == "stdlib"


def test_real_english_is_learned(tmp_path: Path, real_text: Path) -> None:
    command = [
        "data=files",
        f"data.path={real_text / 'tinystories-sample'}",
        "model=nano",
        "train.num_steps=30",
    ]
    done = train(*command, "tokenizer.vocab_size=512", f"run.dir={tmp_path / 'run'}", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (
        read_json(tmp_path / "run" / "result.json")["val/loss"] < 5.0
    )  # log(512) = 6.24 knows nothing


@pytest.mark.parametrize(
    ("precision", "compiled"), [("fp32", True), ("bf16", False), ("bf16", True)]
)
def test_bf16_and_compiling_stay_near_float32(
    tmp_path: Path, tiny_overrides: list[str], precision: str, compiled: bool
) -> None:
    command = [word for word in tiny_overrides if "run.dir" not in word]
    assert train(*command, f"run.dir={tmp_path / 'plain'}", cwd=tmp_path).returncode == 0
    changed = (f"train.compile={str(compiled).lower()}", f"train.precision={precision}")
    done = train(*command, f"run.dir={tmp_path / 'changed'}", *changed, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    bound = 1e-4 if precision == "fp32" else 2e-2
    for left, right in zip(
        read_metrics(tmp_path / "plain"), read_metrics(tmp_path / "changed"), strict=True
    ):
        assert left["train/loss"] == pytest.approx(right["train/loss"], abs=bound)


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


def test_a_broken_variant_file_is_one_sentence(tmp_path: Path) -> None:
    copy = tmp_path / "checkout"
    shutil.copytree(REPOSITORY / "configs", copy / "configs")
    shutil.copytree(REPOSITORY / "rope_exp", copy / "rope_exp")
    shutil.copy(REPOSITORY / "train.py", copy)
    (copy / "configs" / "pe" / "bad.yaml").write_text("name: Bad\nrotate: [k, v\n")
    done = subprocess.run(
        [sys.executable, "train.py", "pe=bad"], cwd=copy, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: configs: a file there is no YAML")
    assert done.stderr.count("\n") == 1
