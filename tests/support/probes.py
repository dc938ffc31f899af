"""A finished model with a held-out text of its own, to be asked for probes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from rope_exp.config import RunConfig
from rope_exp.decoder import Decoder
from rope_exp.sections import DataConfig, TrainConfig
from rope_exp.trainer import Trainer
from support.models import VOCAB

LENGTH = 16
END = 0  # ends a document
HELD_OUT = np.random.default_rng(0).integers(0, VOCAB, size=8 * LENGTH * 3 + 1).astype(np.uint16)


@dataclass
class Finished:
    """A trainer at its end, as probes see it."""

    decoder: Decoder
    config: RunConfig
    data: Any
    rows_at_once: int
    should_stop: Callable[[], bool] = lambda: False

    @property
    def stop(self) -> Any:
        return SimpleNamespace(requested=self.should_stop())

    def ask(self, probes: Sequence[str]) -> dict[str, Any] | None:
        return Trainer.ask(cast("Trainer", self), probes)

    def answer(self, name: str) -> dict[str, Any]:
        answers = self.ask([name])
        assert answers is not None
        answer: dict[str, Any] = answers[name]
        return answer


def finished(
    decoder: Decoder,
    held_out: np.ndarray = HELD_OUT,
    *,
    at_once: int = 4,
    data: DataConfig = DataConfig(),  # noqa: B008
    train: dict[str, Any] | None = None,
    **changes: Any,
) -> Finished:
    """Return a model of text; `train` are further keys of its config, `changes` are its fields."""
    sizes = {"seq_len": LENGTH, "eval_sequences": 16} | (train or {})
    text = SimpleNamespace(
        tokens={"validation": held_out}, corpus={"end_id": END}, vocab_size=VOCAB
    )
    config = RunConfig(data=data, train=TrainConfig(**sizes))
    return Finished(decoder, config, text, at_once, **changes)


def ask(decoder: Decoder, name: str, *args: Any, **changes: Any) -> dict[str, Any]:
    return finished(decoder, *args, **changes).answer(name)
