"""Tests that any command line is refused in one sentence or trains a step."""

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st
from support.configs import NINE

from rope_exp.compose import resolve, run_config
from rope_exp.config import RunConfig, flat
from rope_exp.costs import known_vocab_size, memory_bytes
from rope_exp.errors import ConfigError, DataError
from rope_exp.parallel import Parallel
from rope_exp.prepare import prepare
from rope_exp.trainer import Trainer

KEYS = list(flat(RunConfig().to_dict()))
# Every config has these sizes, so that an accepted run takes milliseconds.
SMALL = {
    "model.hidden_size": ["8", "16", "32"],
    "model.intermediate_size": ["1", "24"],
    "model.num_hidden_layers": ["1", "2", "3"],
    "model.num_attention_heads": ["1", "2", "4"],
    "model.num_key_value_heads": ["1", "2"],
    "train.global_batch_size": ["1", "4", "6", "8"],
    "train.micro_batch_size": ["null", "1", "2", "8"],
    "train.seq_len": ["4", "16", "31"],
    "launch.num_processes": ["1", "2", "all"],
}
USUAL = {
    "pe": NINE,
    "attn": ["softmax", "linear", "mla"],
    "schedule": ["cosine", "wsd"],
    "pe.trainable": ["true", "log"],
    "pe.base_vo": ["2", "100"],
    "pe.layers": ["[1]", "[0,1]"],
    "pe.input": ["sinusoidal", "learned"],
    "pe.bias": ["alibi", "t5"],
    "model.window": ["1", "9"],
    "model.qk_norm": ["true"],
    "model.tie_word_embeddings": ["true"],
    "data.document_mask": ["true"],
    "optim.betas": ["[0,0]", "[0.5,0.9]"],
    "train.objective": ["mlm", "regression"],
    "train.stages": ["[[4,500,3]]", "[[31,499],[16,1]]"],
}
ODD = ["null", "true", "-1", "0", "1.5", "nan", "-inf", "1e400", "1e-320", "1_000", "0x10"]
ODD += [str(2**31), str(2**53 + 1), str(2**63 - 1), str(2**63), "9" * 400, "9" * 5000]
ODD += ["", "''", "[]", "{}", "[[q]]", "[q,q]", "{a:1}", "[null]", "[" * 300 + "]" * 300]
ODD += ["???", "${seed}", "${nosuch}", "${oc.env:HOME}", "'${oc.env:HOME}'", "${pe}", "_target_"]
ODD += ["1,2", "range(0,3)", "glob(*)", "a" * 300, "'a\nb'", "'a\0b'", "'\x1b[2J'"]
ODD += ["\U0001f600", "'\udcff'", "'../x'", "'~nosuchuser/x'", "~", "x=y", "'un", "\\"]


@st.composite
def command_lines(draw: st.DrawFn) -> dict[str, str]:
    """Draw overrides by key: small sizes, some usual values, sometimes an odd one of any key."""
    words = {key: draw(st.sampled_from(values)) for key, values in SMALL.items()}
    for key in draw(st.lists(st.sampled_from(sorted(USUAL)), unique=True, max_size=3)):
        words[key] = draw(st.sampled_from(USUAL[key]))
    for key in draw(st.lists(st.sampled_from(KEYS), max_size=1)):
        any_text = st.text(st.characters(exclude_categories=()), max_size=8)
        words[key] = draw(st.sampled_from(ODD) | any_text)
    return words


def outcome(words: dict[str, str], corpus: Path, cache: Path) -> str:
    """Return "refused", "too large", "of another corpus", or "trained" after a finite step."""
    fixed = {
        "data": "files",
        "data.path": f"'{corpus}'",
        "data.cache_dir": f"'{cache}'",
        "data.holdout_fraction": "0.2",
        "tokenizer": "bytes",
        "launch.device": "cpu",
        "train.compile": "false",
        "train.precision": "fp32",
    }
    try:
        config = resolve(run_config([f"{key}={value}" for key, value in (fixed | words).items()]))
        # One process reads the whole batch.
        read = max(stage.batch_size * (8 * stage.seq_len + 72) for stage in config.train.staged)
        if read + memory_bytes(config, known_vocab_size(config) or 257) > 2**30:
            return "too large"
        assert RunConfig.from_dict(config.to_dict()) == config
        if (config.data.kind, config.data.path) != ("files", str(corpus)):
            return "of another corpus"
        # Nothing is written elsewhere, whatever folder was drawn.
        config = config.replace("data", cache_dir=str(cache))
        prepared = prepare(config.data, config.tokenizer, seq_len=config.train.seq_len)
    except (ConfigError, DataError) as error:
        note(str(error))
        assert str(error).isprintable()
        return "refused"
    stop: Any = SimpleNamespace(requested=False)
    # Compiling takes half a minute, and gives the same numbers up to rounding.
    config = config.replace("train", compile=False)
    trainer = Trainer(config, Path("nowhere"), prepared, Parallel("cpu", "fp32", 1), stop)
    started = trainer.train_step(1)
    assert started is not None
    assert math.isfinite(started().loss)
    return "trained"


@pytest.mark.parametrize("num_examples", [15, pytest.param(2000, marks=pytest.mark.torture)])
def test_every_command_line_is_refused_or_trains(
    corpus: Path, cache: Path, num_examples: int
) -> None:
    outcomes: list[str] = []

    @settings(derandomize=True, max_examples=num_examples)
    @given(command_lines())
    def every_command_line_is_refused_or_trains(words: dict[str, str]) -> None:
        outcomes.append(outcome(words, corpus, cache))

    every_command_line_is_refused_or_trains()
    # Both outcomes must be frequent, so that neither occurs by chance alone.
    for end in ("refused", "trained"):
        assert outcomes.count(end) > num_examples / 8, outcomes
