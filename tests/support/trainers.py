"""Trainers in the test's own process, and readers of their results."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from rope_exp.compose import resolve
from rope_exp.config import RunConfig
from rope_exp.cuda_graphs import WARMUP_STEPS, StepGraphs
from rope_exp.files import read_json
from rope_exp.folder import PROBES, read_metrics, write_config
from rope_exp.optimizer import optimizer_tensors
from rope_exp.parallel import Parallel
from rope_exp.prepare import open_data, prepare
from rope_exp.step import Outcome
from rope_exp.trainer import Trainer

Make = Callable[..., Trainer]


def build_trainer(config: RunConfig, folder: Path, **changes: Any) -> Trainer:
    """Return a single-rank trainer in float32; `changes` replace fields of the prepared data."""
    config = resolve(config)
    folder.mkdir(parents=True, exist_ok=True)
    write_config(folder, config)
    prepared = open_data(config.data, config.tokenizer, seq_len=config.train.seq_len)
    stop: Any = SimpleNamespace(requested=False)
    parallel = Parallel(config.launch.device, "fp32", 1)
    return Trainer(config, folder, replace(prepared, **changes), parallel, stop)


def finish(trainer: Trainer) -> Trainer:
    prepared = prepare(trainer.config.data, trainer.config.tokenizer)
    shutil.copy(prepared.folder / "tokenizer.json", trainer.folder / "tokenizer.json")
    assert trainer.train() == "finished"
    return trainer


class Uncaptured(StepGraphs):
    """Makes steps from the tensors of a graph, by the same function, without capturing it."""

    def _capture(self, launch: Callable[[], None]) -> Callable[[], None]:
        for _ in range(WARMUP_STEPS):
            launch()
        return launch


def uncaptured(trainer: Trainer, kind: type[StepGraphs] = Uncaptured) -> Trainer:
    step = trainer.train_step
    step.graphs = kind(
        step.config.name, step.update, step.optimizer, step.first_bad_step, step.decoder
    )
    return trainer


def outcomes(trainer: Trainer, first: int = 1, last: int = 6) -> list[tuple[float, float]]:
    """Make some steps, and return the loss and the gradient norm of each."""
    steps: list[Any] = [trainer.train_step(step) for step in range(first, last + 1)]
    return [read()[1:3] for read in steps]


def take_bad_step(trainer: Trainer, poison: float) -> list[Outcome]:
    """Make step 2 with a gradient that is not finite, then step 3, and return their outcomes."""
    weight = trainer.decoder.lm_head.weight
    hook = weight.register_hook(lambda gradient: gradient * poison)
    bad = trainer.train_step(2)
    hook.remove()
    later = trainer.train_step(3)
    assert bad is not None
    assert later is not None
    return [bad(), later()]


def assert_goes_on(make: Make, *words: str) -> Trainer:
    """Assert that a run stopped in step 4 and resumed equals a whole one, and return that one."""
    whole = make("whole", *words)
    assert whole.train() == "finished"

    parted = make("parted", *words)

    def ask(gradient: torch.Tensor) -> None:
        # In the backward pass of step 4, which the trainer still completes.
        parted.stop.requested |= parted.step == 3

    parted.decoder.lm_head.weight.register_hook(ask)
    assert parted.train() == "stopped"
    assert parted.step == 4
    again = make("parted", *words)
    assert again.step == 4
    assert again.train() == "finished"
    assert losses(again) == losses(whole)
    assert same(snapshot(again), snapshot(whole))
    assert again.train_step.order_sha256 == whole.train_step.order_sha256
    if whole.config.train.probes:
        assert read_json(again.folder / PROBES) == read_json(whole.folder / PROBES)
    return whole


def snapshot(trainer: Trainer) -> dict[str, torch.Tensor]:
    return {
        name: parameter.detach().clone() for name, parameter in trainer.decoder.named_parameters()
    }


def state(trainer: Trainer) -> dict[str, torch.Tensor]:
    moments = optimizer_tensors(trainer.train_step.optimizer, trainer.decoder)
    return snapshot(trainer) | {name: moment.clone() for name, moment in moments.items()}


def same(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(tensor, right[name]) for name, tensor in left.items())


def losses(trainer: Trainer) -> list[tuple[int, float, float | None]]:
    return [
        (row["step"], row["train/loss"], row.get("val/loss"))
        for row in read_metrics(trainer.folder)
    ]
