"""Example contents of a run's result.json."""

from typing import Any

FINISHED: dict[str, Any] = {
    "status": "finished",
    "pe": "vo_rope",
    "rotate": ["v", "o"],
    "seed": 3,
    "params": 1,
    "tokens": 192,
    "steps": 3,
    "val/loss": 4.5,
    "train/loss_last": 2.0,
    "tokens_per_s": None,
    "mfu": None,
    "wall_s": 1.0,
    **{f"{what}_sha256": "0" * 64 for what in ("init", "data", "order", "config", "group")},
}
DIVERGED = FINISHED | {"status": "diverged", "val/loss": None, "diverged_step": 4}
