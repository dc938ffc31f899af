"""Tests that absurd values are refused in one sentence or stored harmlessly."""

import itertools
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support.command import assert_refused, command
from support.gpus import show_gpus
from support.refused import refused

from rope_exp.config.run import RunConfig
from rope_exp.launch.admit import acquire, admit
from rope_exp.model.laws import certificate
from rope_exp.plan import resolve as resolve_module
from rope_exp.plan.compose import CONFIGS, run_config
from rope_exp.plan.resolve import check_memory, resolve
from rope_exp.run.folder import read_config
from rope_exp.system.errors import ConfigError

# -- text and numbers ----------------------------------------------------------------------------

PATHS = ["run.dir", "data.path", "data.cache_dir", "tokenizer.path"]
NO_PATHS = [
    "a\0b",
    "a" * 256,
    "😀" * 64,
    "a/" * 2000,
    "~nosuchuser/x",
    "",
]


NAMES = ["pe.name", "run.group", "tracker.project", "tracker.entity", "model.name"]
NO_NAMES = ["a" * 300, "\U0001f600", "a\nb", "a\0b", "../a", "a/b", "", "a\u202eb"]
TEXTS = [*itertools.product(PATHS, NO_PATHS), *itertools.product(NAMES, NO_NAMES)]


@pytest.mark.parametrize(("key", "text"), TEXTS, ids=lambda word: ascii(word)[:24])
def test_a_path_or_name_that_cannot_be_is_refused(key: str, text: str) -> None:
    values = run_config([]).to_dict()
    group, name = key.split(".")
    values[group][name] = text
    with refused(f"{key}="):
        RunConfig.from_dict(values)


@pytest.mark.parametrize("name", ["😀", "Ω ß 日本", "a'b\"c\\d: #e", "n" * 255])
def test_an_odd_folder_is_stored_as_it_is(
    tiny: Callable[..., RunConfig], tmp_path: Path, name: str
) -> None:
    values = tiny().to_dict()
    values["run"]["dir"] = str(tmp_path / name)
    config = resolve(RunConfig.from_dict(values))
    [job] = admit([config])
    assert acquire(job)
    job.unlock()
    assert os.listdir(tmp_path) == [name]
    assert read_config(tmp_path / name).to_dict()["run"]["dir"] == str(tmp_path / name)


def test_a_home_is_expanded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert run_config(["run.dir='~/x'"]).folder == tmp_path / "x"


# -- sizes ---------------------------------------------------------------------------------------

ABSURD = [
    (("train.global_batch_size=1000000000",), "train.global_batch_size=1000000000: "),
    (
        ("train.global_batch_size=1000000000", "train.micro_batch_size=1"),
        "train.global_batch_size=1000000000: ",
    ),
    (("train.seq_len=16000000",), "train.global_batch_size=16: "),
    (("model.hidden_size=1048576",), "model=nano: "),
    (("model.intermediate_size=1048576", "model.num_hidden_layers=100"), "model=nano: "),
    (("tokenizer.vocab_size=16777216", "model.hidden_size=16384"), "model=nano: "),
    (
        ("launch.num_processes=1000000", "train.global_batch_size=1000000", "train.seq_len=1"),
        "launch.num_processes=1000000: ",
    ),
    (("launch.num_processes=9223372036854775807",), "train.global_batch_size=16: "),
]


@pytest.mark.parametrize(("overrides", "sentence"), ABSURD, ids=[case[0][0] for case in ABSURD])
def test_what_fits_no_machine_is_refused_at_once(overrides: tuple[str, ...], sentence: str) -> None:
    """The error states both sizes, or the number of which the batch must be a multiple."""
    started = time.process_time()
    with pytest.raises(ConfigError, match=r"GiB, and this machine has|multiple of") as error:
        check_memory(resolve(run_config(["launch.device=cpu", *overrides])))
    assert str(error.value).startswith(sentence)
    assert time.process_time() - started < 5


def test_a_run_that_fits_no_machine_prepares_nothing(tmp_path: Path) -> None:
    done = command("model.hidden_size=1048576", cwd=tmp_path)
    assert_refused(done, "model=nano", "GiB, and this machine has")
    assert list(tmp_path.iterdir()) == []


def test_our_own_sizes_fit_a_card_of_80_gib(monkeypatch: pytest.MonkeyPatch) -> None:
    """The estimate that refuses configs must admit every size in configs/model."""
    show_gpus(monkeypatch, 1)
    monkeypatch.setattr(resolve_module, "memory_size", lambda: 2**40)
    for path in (CONFIGS / "model").glob("*.yaml"):
        check_memory(resolve(run_config([f"model={path.stem}"])))


EXTREMES = [
    ("pe.start=16000000",),
    ("pe.start=16000000", "pe.base=1.0000001"),
    ("pe.start=10000000", "pe.base=1e30"),
    ("pe.base=1.0000001",),
    ("pe.fraction=0.04",),
    ("pe.start=16000000", "model.hidden_size=1024"),
]


@pytest.mark.parametrize("extremes", EXTREMES, ids=" ".join)
@pytest.mark.parametrize("rotate", ["[]", "[q]", "[v]", "[o]", "[q,k]", "[v,o]", "[q,k,v,o]"])
def test_a_rotation_at_the_end_of_its_range(extremes: tuple[str, ...], rotate: str) -> None:
    """The certificate still measures the expected law."""
    config = run_config([f"pe.rotate={rotate}", *extremes])
    checked = certificate(config.model, config.pe)
    assert checked["measured"] == checked["expected"]
