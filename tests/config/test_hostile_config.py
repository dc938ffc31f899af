"""Tests that absurd values are refused in one sentence or stored harmlessly."""

import itertools
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from support.refused import refused

from rope_exp.admit import acquire, admit
from rope_exp.compose import run_config
from rope_exp.config import RunConfig
from rope_exp.folder import read_config
from rope_exp.laws.certificate import certificate
from rope_exp.settle import resolve

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


NAMES = ["pe.name", "run.group", "tracker.project", "model.name"]
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


# -- extremes -------------------------------------------------------------------------------------

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
