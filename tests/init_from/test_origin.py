"""Tests of runs whose initial weights come from another run (run.init_from), or are refused."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.refused import refused
from support.reports import make_run, sha256_of
from support.trainers import Make, assert_goes_on, build_trainer, finish, same, snapshot

from rope_exp.compose import run_config
from rope_exp.config import RunConfig
from rope_exp.decoder import weights, weights_sha256
from rope_exp.errors import ConfigError
from rope_exp.files import read_json, write_json
from rope_exp.folder import MANIFEST, MODEL, read_env, read_result, step_folder
from rope_exp.init_from import with_weights as with_origin
from rope_exp.trainer import Trainer
from rope_exp.worker import record_start

Source = Callable[..., Trainer]
WEIGHTS = sha256_of("weights")


def finished(
    runs: Path, weights: str = WEIGHTS, steps: tuple[int, ...] = (500,), **changes: Any
) -> Path:
    """Return the folder of a finished run; its checkpoints have manifests, but no weights."""
    folder = make_run(runs, **changes)
    for step in steps:
        saved = step_folder(folder / "checkpoints", step)
        saved.mkdir(parents=True)
        entries = {name: {"sha256": WEIGHTS} for name in ("optimizer.safetensors", "state.json")}
        write_json(saved / MANIFEST, {**entries, MODEL: {"sha256": weights}})
    return folder


def going_on(folder: Path, *overrides: str) -> RunConfig:
    return with_origin(run_config([f"run.init_from={folder}", *overrides]))


@pytest.fixture
def source(make: Make) -> Source:
    """Return `source`: `source("pe=vo_rope")` is a finished run, including its tokenizer."""
    return lambda *overrides: finish(make("source", *overrides))


@pytest.fixture
def go_on(tiny: Callable[..., RunConfig], tmp_path: Path) -> Source:
    """Return `go_on`: `go_on("name", "pe=qkvo_rope")` begins with the source's weights."""

    def build(name: str, *overrides: str) -> Trainer:
        config = tiny("launch.device=cpu", f"run.init_from={tmp_path / 'source'}", *overrides)
        config = with_origin(config.replace("run", dir=str(tmp_path / name)))
        return build_trainer(config, tmp_path / name)

    return build


def test_every_variant_of_the_nine_begins_with_the_same(source: Source, go_on: Source) -> None:
    """Weights are copied bit for bit, whatever the seed; the same variant keeps its loss."""
    first = source("pe=qk_rope")
    for name in ("nope", "k_rope", "vo_rope", "qkvo_rope"):
        ours = go_on(name, f"pe={name}", "seed=5")
        assert same(snapshot(ours), snapshot(first))
        for key in ("init_sha256", "shared_init_sha256"):
            assert ours.identity[key] == weights_sha256(weights(first.decoder))
        assert ours.step == 0
        assert ours.train_step.optimizer.state_dict()["state"] == {}

    result = read_result(first.folder)
    assert result is not None
    again = go_on("again", "pe=qk_rope")
    assert again.evaluate() == result["val/loss"]
    assert again.config.config_sha256 != first.config.config_sha256


NORMS = [
    f"model.layers.{layer}.self_attn.{norm}_norm.weight" for layer in (0, 1) for norm in ("k", "q")
]
NEW = {
    "pe.bias=t5": ["model.score_bias.weight"],
    "pe.input=learned": ["model.added_positions.weight"],
    "pe.trainable=log": ["model.rotary_emb.inv_freq"],
    "model.qk_norm=true": NORMS,
    "model.token_shift=true": [f"model.layers.{layer}.self_attn.token_shift" for layer in (0, 1)],
}


@pytest.mark.parametrize("word", NEW)
def test_what_the_other_had_not_begins_as_ever(
    source: Source, go_on: Source, make: Make, word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Parameters that the source lacks keep their usual initialisation, and are logged."""
    first = source()
    ours = snapshot(go_on("ours", word))
    fresh = snapshot(make("fresh", word))
    old = snapshot(first)
    assert sorted(ours.keys() - old.keys()) == NEW[word]
    for name, tensor in ours.items():
        assert torch.equal(tensor, old.get(name, fresh[name])), name
    assert f"begun anew: {', '.join(NEW[word])}\n" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("theirs", "ours", "taken"),
    [
        ("qk_rope", "qkvo_rope", {"inv_freq": "inv_freq"}),
        ("vo_rope", "qkvo_rope", {"inv_freq_vo": "inv_freq"}),
        ("qkvo_rope", "vo_rope", {"inv_freq": "inv_freq_vo"}),
        ("qk_rope", "vo_rope", {}),
    ],
)
def test_learned_frequencies_stay_with_their_sites(
    source: Source, go_on: Source, theirs: str, ours: str, taken: dict[str, str]
) -> None:
    """The first pair of sites that learns is named `inv_freq`, so names do not identify sites."""
    first = source("pe.trainable=log", f"pe={theirs}", "optim.lr=0.1")
    second = go_on("ours", "pe.trainable=log", f"pe={ours}")
    for name, parameter in second.decoder.model.rotary_emb.named_parameters():
        expected = torch.zeros_like(parameter)
        if name in taken:
            expected = first.decoder.model.rotary_emb.get_parameter(taken[name])
            assert bool((expected != 0).any())
        assert torch.equal(parameter, expected)


@pytest.mark.parametrize(
    ("theirs", "ours", "tensor"),
    [
        ("model.qk_norm=true", "", "model.layers.0.self_attn.k_norm.weight of [16]"),
        ("", "attn=mla", "model.layers.0.self_attn.k_proj.weight of [32, 32]"),
        ("", "model.intermediate_size=48", "model.layers.0.mlp.down_proj.weight of [32, 64]"),
        ("pe.input=learned", "train.seq_len=32", "model.added_positions.weight of [16, 32]"),
        ("pe.trainable=true", "pe.trainable_scope=layer", "model.rotary_emb.inv_freq of [8]"),
    ],
)
def test_weights_that_do_not_fit_are_refused(
    source: Source, go_on: Source, theirs: str, ours: str, tensor: str
) -> None:
    """The error names the first tensor that does not fit, and its shape."""
    source(*theirs.split())
    shared = theirs.split() if theirs.startswith("pe.") else []
    with refused("run.init_from=", f"has {tensor}, which does not fit here", by=ConfigError):
        go_on("ours", *shared, *ours.split())


def test_another_tokenizer_is_refused(source: Source, go_on: Source) -> None:
    """The vocabulary keeps its size, but two tokens swap their ids."""
    first = source()
    path = first.folder / "tokenizer.json"
    values = read_json(path)
    values["model"]["vocab"] |= {"a": 98, "b": 97}
    write_json(path, values)
    with refused("run.init_from=", "has another tokenizer"):
        go_on("ours")


def test_weights_that_were_changed_are_refused(
    source: Source, tiny: Callable[..., RunConfig], tmp_path: Path
) -> None:
    """They must match both init_weights and the manifest of their checkpoint."""
    first = source()
    words = ("launch.device=cpu", f"run.init_from={first.folder}", f"init_weights={'a' * 64}")
    with refused("has other weights than init_weights=aaaaaaaaaaaa"):
        build_trainer(tiny(*words), tmp_path / "ours")
    path = step_folder(first.folder / "checkpoints", 6) / MODEL
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with refused("model.safetensors does not verify against its manifest"):
        build_trainer(with_origin(tiny(*words[:2])), tmp_path / "ours")


def test_it_goes_on_from_its_own_checkpoints(source: Source, go_on: Source) -> None:
    """Resuming is exact, to the last bit and with the same hashes, also once the source is gone."""
    first = source("pe=qk_rope")
    words = ("pe=qkvo_rope", "train.save_every=2")
    whole = assert_goes_on(go_on, *words)
    record_start(whole, {})
    env = read_env(whole.folder)
    assert env["init_from"]["config_sha256"] == first.config.config_sha256
    assert env["init_from"]["weights_sha256"] == whole.config.init_weights
    shutil.rmtree(first.folder)
    again = go_on("parted", *words)
    shutil.copy(whole.folder / "env.json", again.folder)
    record_start(again, {})
    assert read_env(again.folder)["init_from"] == env["init_from"]
    assert same(snapshot(again), snapshot(whole))
    assert again.identity == whole.identity


def test_a_run_is_told_by_the_weights_that_it_began_with(tmp_path: Path) -> None:
    """They are those of its origin's last step. The origin's path does not matter.

    Runs from another origin, or none, are another group.
    """
    folder = finished(tmp_path, steps=(250, 500))
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


@pytest.mark.parametrize(
    ("make_folder", "words"),
    [
        (lambda runs: runs / "nowhere", "there is no run in this folder"),
        (lambda runs: make_run(runs, loss=None), "this run is not finished"),
        (lambda runs: make_run(runs, loss=None, result={}), "this run is not finished"),
        (
            lambda runs: finished(runs, steps=(250,)),
            "the checkpoint of its last step, 500, is gone",
        ),
        (lambda runs: finished(runs, "no hash"), "manifest.json was damaged or edited: model.safe"),
    ],
)
def test_what_is_no_finished_run(
    tmp_path: Path, make_folder: Callable[[Path], Path], words: str
) -> None:
    with refused(words):
        going_on(make_folder(tmp_path))


@pytest.mark.parametrize(
    ("theirs", "ours", "words"),
    [
        ([], "model.num_attention_heads=4 model.num_key_value_heads=4", "num_attention_heads=4"),
        ([], "model.num_key_value_heads=1", "model.num_key_value_heads=1: must be 2"),
        ([], "model.tie_word_embeddings=true", "model.tie_word_embeddings=true: must be"),
        (["pe.trainable=true"], "pe.trainable=log", "pe.trainable=log: must be "),
    ],
)
def test_weights_that_fit_and_mean_something_else(
    tmp_path: Path, theirs: list[str], ours: str, words: str
) -> None:
    """Shapes do not show the number of heads, or distinguish a frequency from its logarithm."""
    folder = finished(tmp_path, overrides=theirs)
    with refused(words, "run.init_from=", by=ConfigError):
        going_on(folder, *ours.split())
