"""Trainers in the test's own process, and readers of their results."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from rope_exp.config.resolve import resolve
from rope_exp.config.run import RunConfig
from rope_exp.data.prepare import prepare
from rope_exp.run.folder import write_config
from rope_exp.run.metrics import read_metrics
from rope_exp.training.parallel import Parallel
from rope_exp.training.trainer import Trainer

Make = Callable[..., Trainer]


def build_trainer(config: RunConfig, folder: Path, **changes: Any) -> Trainer:
    """Return a trainer of one rank on the CPU; a test can set its `stop`.

    Args:
        changes: to the prepared data, such as data_sha256.
    """
    config = resolve(config)
    folder.mkdir(parents=True, exist_ok=True)
    write_config(folder, config)
    prepared = prepare(config.data, config.tokenizer, seq_len=config.train.seq_len)
    stop: Any = SimpleNamespace(requested=False)
    parallel = Parallel("cpu", "fp32", 1)
    return Trainer(config, folder, replace(prepared, **changes), parallel, stop)


def stop_in_step(trainer: Trainer, step: int) -> None:
    """Ask a trainer to stop while the gradient of a step is computed; it still takes that step."""

    def ask(gradient: torch.Tensor) -> None:
        trainer.stop.requested |= trainer.step == step - 1

    trainer.decoder.lm_head.weight.register_hook(ask)


def snapshot(trainer: Trainer) -> dict[str, torch.Tensor]:
    """Return a copy of the weights."""
    return {
        name: parameter.detach().clone() for name, parameter in trainer.decoder.named_parameters()
    }


def same(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    """Return whether two snapshots are equal to the last bit."""
    return all(torch.equal(tensor, right[name]) for name, tensor in left.items())


def losses(trainer: Trainer) -> list[tuple[int, float, float | None]]:
    """Return step, training loss and validation loss of every row."""
    return [
        (row["step"], row["train/loss"], row.get("val/loss"))
        for row in read_metrics(trainer.folder)
    ]
