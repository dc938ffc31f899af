"""A finished model with a held-out text of its own, to be asked for probes."""

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np

from rope_exp.config import RunConfig, TrainConfig
from rope_exp.decoder import Decoder
from rope_exp.sections import DataConfig
from rope_exp.trainer import Trainer
from support.models import VOCAB

LENGTH = 16
END = 0  # ends a document
HELD_OUT = np.random.default_rng(0).integers(0, VOCAB, size=8 * LENGTH * 3 + 1)


@dataclass
class Finished:
    """A trainer at its end, as probes see it; `crossings` are counts by pair of sites."""

    decoder: Decoder
    config: RunConfig
    data: Any
    rows_at_once: int
    should_stop: Callable[[], bool] = lambda: False
    crossings: Mapping[str, Any] = field(default_factory=dict)

    ask = Trainer.ask

    @property
    def stop(self) -> Any:
        return SimpleNamespace(requested=self.should_stop())

    @property
    def train_step(self) -> Any:
        rotary = self.decoder.model.rotary_emb
        state: Any = defaultdict(dict)
        for pair, counts in self.crossings.items():
            state[rotary.get_parameter(rotary.learned[pair])]["crossings"] = counts
        return SimpleNamespace(optimizer=SimpleNamespace(state=state))


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
    answers = finished(decoder, *args, **changes).ask([name])
    assert answers is not None
    answer: dict[str, Any] = answers[name]
    return answer
