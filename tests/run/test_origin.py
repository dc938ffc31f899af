"""Tests of a run's origin (run.init_from), which is identified by its weights or refused."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.refused import refused
from support.reports import make_run, sha256_of

from rope_exp.commands import plan
from rope_exp.config.run import RunConfig
from rope_exp.plan.compose import run_config
from rope_exp.plan.resolve import resolve
from rope_exp.run.folder import MANIFEST, MODEL, OPTIMIZER, STATE, step_folder, write_config
from rope_exp.run.origin import find_origin, with_origin
from rope_exp.system.errors import ConfigError
from rope_exp.system.files import write_json

WEIGHTS = sha256_of("weights")


def finished(runs: Path, weights: str = WEIGHTS, **changes: Any) -> Path:
    """Return the folder of a finished run; its checkpoint has a manifest, but no weights."""
    folder = make_run(runs, **changes)
    add_checkpoint(folder, weights, 500)
    return folder


def add_checkpoint(folder: Path, weights: str, step: int) -> None:
    checkpoint = step_folder(folder / "checkpoints", step)
    checkpoint.mkdir(parents=True)
    digests = {MODEL: weights, OPTIMIZER: sha256_of("moments"), STATE: sha256_of("state")}
    files = {name: {"sha256": digest} for name, digest in digests.items()}
    write_json(checkpoint / MANIFEST, files)


def going_on(folder: Path, *overrides: str) -> RunConfig:
    return with_origin(run_config([f"run.init_from={folder}", *overrides]))


# -- identity --------------------------------------------------------------------------------------


def test_a_run_is_told_by_the_weights_that_it_began_with(tmp_path: Path) -> None:
    """The origin's path does not matter; runs from another origin, or none, are another group."""
    folder = finished(tmp_path)
    moved = tmp_path / "elsewhere"
    shutil.copytree(folder, moved)
    other = finished(tmp_path, sha256_of("others"), seed=1)

    ours = going_on(folder)
    assert ours.init_weights == WEIGHTS
    assert going_on(moved).config_sha256 == ours.config_sha256
    assert going_on(folder, "pe=qkvo_rope").group_sha256 == ours.group_sha256
    assert going_on(folder, "seed=3").group_sha256 == ours.group_sha256
    groups = {going_on(other).group_sha256, ours.group_sha256, run_config([]).group_sha256}
    assert len(groups) == 3


def test_the_last_checkpoint_counts(tmp_path: Path) -> None:
    folder = finished(tmp_path)
    add_checkpoint(folder, sha256_of("earlier"), 250)
    origin = find_origin(str(folder))
    assert (origin.step, origin.weights_sha256) == (500, WEIGHTS)
    assert origin.facts == {
        "pe": "qk_rope",
        "seed": 0,
        "step": 500,
        "config_sha256": origin.config.config_sha256,
        "weights_sha256": WEIGHTS,
    }


def test_without_an_origin_nothing_is_changed() -> None:
    config = run_config(["pe=vo_rope"])
    assert with_origin(config) == config


def test_a_hash_may_be_asked_for(tmp_path: Path) -> None:
    """It must agree with the weights of run.init_from, and is refused without run.init_from."""
    folder = finished(tmp_path)
    assert going_on(folder, f"init_weights={WEIGHTS}").init_weights == WEIGHTS
    with refused("init_weights=", f"is not what run.init_from={folder} has: {WEIGHTS}"):
        going_on(folder, f"init_weights={sha256_of('others')}")
    with refused("init_weights=", "is given by run.init_from; leave null"):
        with_origin(run_config([f"init_weights={WEIGHTS}"]))


# -- refused origins -------------------------------------------------------------------------------


def unfinished(runs: Path) -> Path:
    return make_run(runs, loss=None, steps=20)


def diverged(runs: Path) -> Path:
    return make_run(runs, loss=None, steps=20, result={})


def without_checkpoint(runs: Path) -> Path:
    folder = finished(runs)
    shutil.rmtree(step_folder(folder / "checkpoints", 500))
    add_checkpoint(folder, WEIGHTS, 250)
    return folder


def with_damage(runs: Path) -> Path:
    return finished(runs, "no hash")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda runs: runs, "there is no run in this folder"),
        (lambda runs: runs / "nowhere", "there is no run in this folder"),
        (unfinished, "this run is not done yet"),
        (diverged, "this run has diverged; begin with a finished one"),
        (without_checkpoint, "the checkpoint of its last step, 500, is gone"),
        (with_damage, "manifest.json was damaged or edited: model.safetensors.sha256"),
    ],
)
def test_what_is_no_finished_run(tmp_path: Path, make: Callable[[Path], Path], words: str) -> None:
    with refused(words):
        going_on(make(tmp_path))


@pytest.mark.parametrize(
    ("theirs", "ours", "words"),
    [
        ([], "model.num_attention_heads=4 model.num_key_value_heads=4", "num_attention_heads=4"),
        ([], "model.num_key_value_heads=1", "model.num_key_value_heads=1: must be that of"),
        ([], "model.tie_word_embeddings=true", "model.tie_word_embeddings=true: must be"),
        (["pe.trainable=true"], "pe.trainable=log", "pe.trainable=log: learns another number"),
    ],
)
def test_weights_that_fit_and_mean_something_else(
    tmp_path: Path, theirs: list[str], ours: str, words: str
) -> None:
    """Shapes do not show the number of heads, or distinguish a frequency from its logarithm."""
    folder = finished(tmp_path, overrides=theirs)
    with refused(words, "run.init_from=", by=ConfigError):
        going_on(folder, *ours.split())


def test_what_one_of_them_does_not_learn_is_no_matter(tmp_path: Path) -> None:
    """The origin learns the frequencies of v and o; this run those of q and k, or none."""
    folder = finished(tmp_path, pe="vo_rope", overrides=["pe.trainable=true"])
    assert going_on(folder, "pe.trainable=log").init_weights == WEIGHTS
    assert going_on(folder, "pe=nope").init_weights == WEIGHTS


# -- resuming --------------------------------------------------------------------------------------


def test_a_run_that_has_begun_needs_its_origin_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run with checkpoints resumes without its origin; run.fresh=true needs it again."""
    monkeypatch.chdir(tmp_path)
    source = finished(tmp_path)
    for place in (f"run.dir={tmp_path / 'own'}", "run.group=mine"):
        begun = going_on(source, place)
        begun.folder.mkdir(parents=True)
        write_config(begun.folder, begun)
        moved = source.rename(tmp_path / "moved")

        with refused("there is no run in this folder"):
            going_on(source, place)
        add_checkpoint(begun.folder, sha256_of("own"), 2)
        assert going_on(source, place) == begun
        with refused("there is no run in this folder"):
            going_on(source, place, "run.fresh=true")
        with refused("there is no run in this folder"):
            going_on(tmp_path / "another", place)
        moved.rename(source)


def test_a_plan_names_the_group_that_the_run_will_have(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = finished(tmp_path)
    assert plan([f"run.init_from={folder}"]) == 0
    assert f"group {resolve(going_on(folder)).group}" in capsys.readouterr().out
