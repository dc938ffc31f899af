"""Small configs composed from the real YAMLs."""

from functools import cache
from pathlib import Path

from rope_exp.compose import run_config
from rope_exp.config import RunConfig
from rope_exp.machine import ROOT
from rope_exp.published import TABLE

REPOSITORY = ROOT
# The published variants in the order of configs/experiment/nine.yaml: by number of rotated sites.
NINE = tuple(sorted(TABLE.losses, key=lambda label: (len(label), "qkvo".find(label[0]))))

# With these overrides a run takes seconds.
TINY = (
    "model.hidden_size=32",
    "model.intermediate_size=64",
    "model.num_hidden_layers=2",
    "train.num_steps=6",
    "train.global_batch_size=4",
    "train.seq_len=16",
    "train.eval_every=3",
    "train.eval_sequences=4",
    "train.save_every=2",
    "train.log_every=1",
    "train.precision=fp32",
    "schedule.warmup_fraction=0.05",
    "tokenizer=bytes",
    "data=files",
)

# Small campaigns: records of real runs at a few rows and seeds, without answers to the probe
# `windows` and with long curves thinned.
RECORDED = REPOSITORY / "tests/stored/records"


@cache
def composed(*overrides: str) -> RunConfig:
    """Return the config of a run, cached because composing it takes 0.1 s."""
    return run_config(overrides)


def left_in(cache: Path) -> list[str]:
    """Return the names in a cache of prepared corpora, without lock files."""
    if not cache.exists():
        return []
    return sorted(path.name for path in cache.iterdir() if path.name != "locks")
