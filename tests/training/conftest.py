"""Fixture that builds trainers, each in its own folder."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.trainers import Make, build_trainer

from rope_exp.config import RunConfig
from rope_exp.trainer import Trainer


@pytest.fixture
def make(tiny: Callable[..., RunConfig], tmp_path: Path) -> Make:
    """Return `make`: `make("name", "train.num_steps=9")` is a trainer in the folder `name`."""

    def build(name: str, *overrides: str, **changes: Any) -> Trainer:
        return build_trainer(tiny("launch.device=cpu", *overrides), tmp_path / name, **changes)

    return build
