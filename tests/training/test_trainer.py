"""The loop from inside: reading late, stopping between micro-batches, and updates that must not happen."""

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from accelerate import Accelerator

from rope_exp.config.resolve import settle
from rope_exp.config.run import RunConfig
from rope_exp.data.prepare import prepare
from rope_exp.launch.admit import acquire, admit
from rope_exp.run import checkpoint
from rope_exp.run.metrics import read_metrics
from rope_exp.system.errors import CheckpointError, RecordError
from rope_exp.system.files import read_json
from rope_exp.training.trainer import Trainer

Make = Callable[..., Trainer]


@pytest.fixture
def make(tiny: Callable[..., RunConfig], tmp_path: Path) -> Make:
    """A trainer in this process, in its own folder."""

    def build(folder: str, *overrides: str) -> Trainer:
        config = settle(tiny(f"run.dir={tmp_path / folder}", "launch.device=cpu", *overrides))
        [job] = admit([config])
        assert acquire(job)
        job.unlock()
        prepared = prepare(config.data, config.tokenizer, seq_len=config.train.seq_len)
        stop: Any = SimpleNamespace(requested=False)
        return Trainer(config, job.folder, prepared, Accelerator(cpu=True), stop)

    return build


def snapshot(trainer: Trainer) -> dict[str, torch.Tensor]:
    return {
        name: parameter.detach().clone() for name, parameter in trainer.decoder.named_parameters()
    }


def same(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(tensor, right[name]) for name, tensor in left.items())


def losses(trainer: Trainer) -> list[tuple[int, float, float | None]]:
    return [
        (row["step"], row["train/loss"], row.get("val/loss"))
        for row in read_metrics(trainer.folder)
    ]


@pytest.mark.parametrize("log_every", [1, 2, 5])
def test_reading_a_step_late_changes_nothing(make: Make, log_every: int) -> None:
    command = (
        f"train.log_every={log_every}",
        "train.num_steps=11",
        "train.save_every=4",
        "train.eval_every=7",
    )
    prompt, late = make("prompt", *command), make("late", *command)
    late.reads_late = True
    assert (prompt.fit(), late.fit()) == ("finished", "finished")
    assert losses(prompt) == losses(late)
    assert same(snapshot(prompt), snapshot(late))
    assert prompt.order_sha256 == late.order_sha256
    steps = {step for step in range(1, 12) if step % log_every == 0 or step in (7, 11)}
    assert [step for step, _, _ in losses(late)] == sorted(steps)


@pytest.mark.parametrize("reads_late", [False, True])
@pytest.mark.parametrize("poison", [math.nan, math.inf])
def test_a_gradient_that_is_not_finite_stops_the_run_at_its_step_with_the_weights_before_it(
    make: Make, reads_late: bool, poison: float
) -> None:
    command = (
        "train.log_every=3",
        "train.num_steps=20",
        "train.save_every=3",
        "train.eval_every=20",
    )
    healthy, sick = make("healthy", *command), make("sick", *command)
    for step in range(1, 8):
        healthy.train_step(step)
    sick.reads_late = reads_late
    sick.decoder.lm_head.weight.register_hook(
        lambda gradient: gradient * poison if sick.step == 7 else gradient
    )
    assert sick.fit() == "diverged"
    assert same(snapshot(healthy), snapshot(sick))
    result = read_json(sick.folder / "result.json")
    assert (result["status"], result["diverged_step"], result["steps"]) == ("diverged", 8, 7)
    assert [step for step, _, _ in losses(sick)] == [3, 6]
    assert sorted(path.name for path in (sick.folder / "checkpoints").iterdir()) == [
        "step_00000003",
        "step_00000006",
    ]


def test_asked_to_stop_between_micro_batches_it_updates_nothing_and_forgets_the_batch(
    make: Make,
) -> None:
    trainer = make("run", "train.micro_batch_size=1")
    trainer.train_step(1)
    before, order = snapshot(trainer), trainer.order_sha256
    trainer.stop.requested = True
    assert trainer.train_step(2) is None
    assert same(before, snapshot(trainer))
    assert trainer.order_sha256 == order
    assert all(parameter.grad is None for parameter in trainer.decoder.parameters())


def test_stopped_at_the_start_nothing_is_saved_and_the_same_run_follows(make: Make) -> None:
    trainer = make("run")
    trainer.stop.requested = True
    assert trainer.fit() == "stopped"
    assert not (trainer.folder / "checkpoints").exists()
    again, whole = make("run"), make("whole")
    assert (again.fit(), whole.fit()) == ("finished", "finished")
    assert losses(again) == losses(whole)


def test_accumulated_gradients_are_those_of_the_whole_batch(make: Make) -> None:
    gradients = []
    for micro in (4, 2, 1):
        trainer = make(f"micro{micro}", f"train.micro_batch_size={micro}", "optim.grad_clip=1000")
        kept: dict[str, torch.Tensor] = {}
        trainer.optimizer.register_step_pre_hook(
            lambda *_, t=trainer, k=kept: k.update(
                {n: p.grad.clone() for n, p in t.decoder.named_parameters()}
            )
        )
        trainer.train_step(1)
        gradients.append(kept)
    for other in gradients[1:]:
        for name, gradient in gradients[0].items():
            assert torch.allclose(gradient, other[name], rtol=1e-4, atol=1e-7), name


def test_evaluation_is_the_mean_of_minus_log_p_over_the_held_out_windows(make: Make) -> None:
    trainer = make("run")
    ids = torch.from_numpy(trainer.validation)
    with torch.no_grad():
        log_p = torch.log_softmax(trainer.decoder(ids[:, :-1]).double(), dim=-1)
    expected = -log_p.gather(-1, ids[:, 1:, None]).mean().item()
    assert trainer.evaluate() == pytest.approx(expected, abs=1e-6)


def test_a_checkpoint_of_other_data_is_refused(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = make("run")
    assert trainer.fit() == "finished"
    (trainer.folder / "result.json").unlink()
    healthy = prepare
    monkeypatch.setattr(
        "test_loop.prepare",
        lambda *a, **k: dataclasses.replace(healthy(*a, **k), data_sha256="0" * 64),
    )
    with pytest.raises(CheckpointError, match="is of another run: its data_sha256"):
        make("run")


def resave(
    trainer: Trainer, change: Callable[[dict[str, Any], dict[str, Any], dict[str, Any]], None]
) -> None:
    """Put a changed checkpoint in the place of the last: whole by its manifest, and yet not ours."""
    (trainer.folder / "result.json").unlink(missing_ok=True)
    folder = trainer.folder / "checkpoints"
    saved = checkpoint.load(folder, 6)
    change(saved.model, saved.optimizer, saved.state)
    checkpoint.save(folder, 6, saved.model, saved.optimizer, saved.state)


def refuses(make: Make, trainer: Trainer, words: str) -> None:
    """A start is refused, in words, and changes nothing."""
    before = {path: path.read_bytes() for path in trainer.folder.rglob("*") if path.is_file()}
    with pytest.raises((CheckpointError, RecordError), match=words):
        make("run").fit()
    after = {path: path.read_bytes() for path in trainer.folder.rglob("*") if path.is_file()}
    assert {path for path in before if before[path] != after.get(path)} <= {
        trainer.folder / "config.yaml"
    }
    assert before.keys() == after.keys()


KEYS = (
    "rng",
    "order_sha256",
    "init_sha256",
    "config_sha256",
    "data_sha256",
    "elapsed_s",
    "metrics",
    "unrecorded",
)


@pytest.mark.parametrize("key", KEYS)
def test_a_state_that_lacks_something_or_holds_something_else_is_refused_and_not_guessed(
    make: Make, key: str
) -> None:
    trainer = make("run")
    assert trainer.fit() == "finished"
    resave(trainer, lambda model, optimizer, state: state.update({key: "zz"}))
    refuses(make, trainer, f"state.json was damaged or edited: {key}=zz")
    resave(trainer, lambda model, optimizer, state: state.pop(key))
    refuses(make, trainer, f"state.json was damaged or edited: {key}: is missing")


@pytest.mark.parametrize(
    "rng", [{}, {"cpu": 3}, {"cpu": "no hex"}, {"cpu": "00ff"}, {"cuda": "00"}]
)
def test_a_foreign_state_of_random_numbers_is_refused(make: Make, rng: dict[str, Any]) -> None:
    trainer = make("run")
    assert trainer.fit() == "finished"
    resave(trainer, lambda model, optimizer, state: state.update(rng=rng))
    refuses(make, trainer, "no state of torch's random numbers")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda m, o: m.pop("model.norm.weight"), "lacks model.norm.weight"),
        (lambda m, o: m.update(extra=torch.ones(1)), "holds an unknown extra"),
        (
            lambda m, o: m.update({"model.norm.weight": torch.ones(1)}),
            r"float32 of \[1\]; .*float32 of \[32\]",
        ),
        (lambda m, o: m.update({"model.norm.weight": torch.ones(32).bfloat16()}), "bfloat16"),
        (lambda m, o: o.pop("model.norm.weight.exp_avg_sq"), "lacks model.norm.weight.exp_avg_sq"),
        (lambda m, o: o.clear(), "lacks lm_head.weight.exp_avg"),
        (lambda m, o: o.update({"lm_head.weight.step": torch.ones(2)}), r"\[2\]"),
    ],
    ids=["missing", "unknown", "shape", "type", "moment", "no moments", "count"],
)
def test_tensors_of_another_model_are_refused_and_never_loaded_in_part(
    make: Make, change: Callable[[dict[str, Any], dict[str, Any]], Any], words: str
) -> None:
    trainer = make("run")
    assert trainer.fit() == "finished"
    resave(trainer, lambda model, optimizer, state: change(model, optimizer))
    refuses(make, trainer, words)


@pytest.mark.parametrize("harm", ["edited", "cut", "removed"])
def test_rows_that_were_changed_before_the_checkpoint_are_refused(make: Make, harm: str) -> None:
    trainer = make("run")
    assert trainer.fit() == "finished"
    (trainer.folder / "result.json").unlink()
    path = trainer.folder / "metrics.jsonl"
    rows = path.read_text().splitlines(keepends=True)
    path.write_text(
        "".join([*rows[:2], *rows[3:]] if harm == "cut" else [rows[0].replace("5", "4"), *rows[1:]])
    )
    if harm == "removed":
        path.unlink()
    before = sorted(item.name for item in trainer.folder.iterdir())
    with pytest.raises(RecordError, match=r"metrics\.jsonl (was changed|cannot be read)"):
        make("run").fit()
    assert sorted(item.name for item in trainer.folder.iterdir()) == before


@pytest.mark.parametrize("reads_late", [False, True])
@pytest.mark.parametrize("at", [1, 2, 3])
def test_asked_to_stop_in_an_evaluation_it_saves_at_once_and_the_row_follows(
    make: Make, at: int, reads_late: bool
) -> None:
    command = (
        "train.num_steps=6",
        "train.eval_every=3",
        "train.save_every=100",
        "train.micro_batch_size=1",
    )
    whole, stopped = make("whole", *command), make("run", *command)
    assert whole.fit() == "finished"
    stopped.reads_late = reads_late
    batches = 0

    def count(*_: object) -> None:
        nonlocal batches
        batches += not torch.is_grad_enabled()
        stopped.stop.requested = batches >= at

    stopped.decoder.register_forward_pre_hook(count)
    assert stopped.fit() == "stopped"
    assert batches == at  # within one micro-batch
    assert [step for step, _, _ in losses(stopped)] == [1, 2]
    assert checkpoint.list_steps(stopped.folder / "checkpoints") == [3]
    again = make("run", *command)
    again.stop.requested = True  # and once more, before the evaluation could be made up for
    assert again.fit() == "stopped"
    last = make("run", *command)
    assert last.fit() == "finished"
    assert losses(whole) == losses(last)
    assert same(snapshot(whole), snapshot(last))


def test_leftovers_of_interrupted_saves_are_cleared_by_the_next_start(make: Make) -> None:
    trainer = make("run")
    folder = trainer.folder / "checkpoints"
    (folder / ".saving-00000009").mkdir(parents=True)
    (folder / ".dropped-step_00000001").write_text("a file where a folder is expected")
    (folder / ".saving-00000008").symlink_to(trainer.folder)
    assert trainer.fit() == "finished"
    assert sorted(path.name for path in folder.iterdir()) == ["step_00000004", "step_00000006"]
    assert (trainer.folder / "result.json").exists()


def test_weights_that_give_no_finite_validation_loss_are_diverged(make: Make) -> None:
    trainer = make("run", "train.eval_every=3")

    def spoil(
        *_: object,
    ) -> None:  # after the last update before an evaluation, which the step's own loss cannot see
        if trainer.step == 5:
            trainer.optimizer.register_step_post_hook(
                lambda *_: trainer.decoder.lm_head.weight.data.fill_(math.inf)
            )

    trainer.decoder.register_forward_pre_hook(spoil)
    assert trainer.fit() == "diverged"
    result = read_json(trainer.folder / "result.json")
    assert (result["status"], result["steps"], result["val/loss"]) == ("diverged", 6, None)
    assert [step for step, _, _ in losses(trainer)] == [1, 2, 3, 4, 5]
