"""What tests share: small configs composed from the real YAMLs, and real text where the machine has it."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from rope_exp.compose import CONFIGS, run_config
from rope_exp.config import RunConfig

REPOSITORY = CONFIGS.parent

NINE = ("nope", "q_rope", "k_rope", "v_rope", "o_rope", "qk_rope", "vo_rope", "qkv_rope", "qkvo_rope")

# Small enough that a run takes seconds; every key is a real one.
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
    "tokenizer=bytes",
    "data=files",
)


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of small documents."""
    folder = tmp_path_factory.mktemp("corpus")
    for number in range(40):
        words = " ".join(f"{word} {number * word % 7}" for word in range(60))
        (folder / f"document{number:02d}.txt").write_text(f"Document {number}. {words}.\n", encoding="utf-8")
    return folder


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One cache of prepared blocks for the whole session."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def tiny_overrides(corpus: Path, cache: Path, tmp_path: Path) -> list[str]:
    """A command line for a run of seconds on the small corpus, in this test's own folder."""
    return [
        *TINY,
        f"data.path={corpus}",
        "data.holdout_fraction=0.2",
        f"data.cache_dir={cache}",
        f"run.dir={tmp_path / 'run'}",
    ]


@pytest.fixture
def tiny(tiny_overrides: list[str]) -> Callable[..., RunConfig]:
    """`tiny("pe=vo_rope")` is the small run's config with more overrides."""
    return lambda *overrides: run_config([*tiny_overrides, *overrides])


@pytest.fixture(scope="session")
def real_text() -> Path:
    """A folder of real corpora, named by ROPE_EXP_TEXT."""
    folder = os.environ.get("ROPE_EXP_TEXT")
    if not folder:
        pytest.skip("ROPE_EXP_TEXT names no folder of real text")
    return Path(folder)
