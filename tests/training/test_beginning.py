"""Tests of runs whose initial weights come from another run (run.init_from)."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from support.refused import refused
from support.trainers import Make, build_trainer, losses, same, snapshot, stop_in_step

from rope_exp.config.run import RunConfig
from rope_exp.data.prepare import prepare
from rope_exp.model.decoder import weights, weights_sha256
from rope_exp.run import checkpoint
from rope_exp.run.folder import read_result
from rope_exp.run.origin import with_origin
from rope_exp.system.errors import ConfigError
from rope_exp.system.files import read_json, write_atomically, write_json
from rope_exp.training.record import environment
from rope_exp.training.trainer import Trainer

Tiny = Callable[..., RunConfig]
GoOn = Callable[..., Trainer]


@pytest.fixture
def source(make: Make) -> Callable[..., Trainer]:
    """Return `source`: `source("pe=vo_rope")` is a finished run, including its tokenizer."""

    def finish(*overrides: str) -> Trainer:
        trainer = make("source", *overrides)
        prepared = prepare(trainer.config.data, trainer.config.tokenizer)
        tokenizer = prepared.tokenizer_file.read_text(encoding="utf-8")
        write_atomically(trainer.folder / "tokenizer.json", tokenizer)
        assert trainer.train() == "finished"
        return trainer

    return finish


@pytest.fixture
def go_on(tiny: Tiny, tmp_path: Path) -> GoOn:
    """Return `go_on`: `go_on("name", "pe=qkvo_rope")` begins with the source's weights."""

    def build(name: str, *overrides: str) -> Trainer:
        words = ("launch.device=cpu", f"run.init_from={tmp_path / 'source'}", *overrides)
        config = with_origin(tiny(*words).replace("run", dir=str(tmp_path / name)))
        return build_trainer(config, tmp_path / name)

    return build


# -- copied weights --------------------------------------------------------------------------------


def test_every_variant_of_the_nine_begins_with_the_same(
    source: Callable[..., Trainer], go_on: GoOn
) -> None:
    """Weights are copied bit for bit, whatever the seed; the same variant keeps its loss."""
    first = source("pe=qk_rope")
    for name in ("nope", "k_rope", "vo_rope", "qkvo_rope"):
        ours = go_on(name, f"pe={name}", "seed=5")
        assert same(snapshot(ours), snapshot(first))
        for key in ("init_sha256", "shared_init_sha256"):
            assert ours.identity[key] == weights_sha256(weights(first.decoder))
        assert (ours.step, ours.train_step.optimizer.state_dict()["state"]) == (0, {})

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
    source: Callable[..., Trainer],
    go_on: GoOn,
    make: Make,
    word: str,
    capsys: pytest.CaptureFixture[str],
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


def test_positions_that_are_not_had_here_are_left_out_by_name(
    source: Callable[..., Trainer], go_on: GoOn, capsys: pytest.CaptureFixture[str]
) -> None:
    """The log names the learned position parameters that this variant lacks."""
    first = source("pe.bias=t5", "pe.input=learned", "pe.trainable=true")
    ours = snapshot(go_on("ours", "pe=nope"))
    assert same(ours, snapshot(first))
    left = "model.added_positions.weight, model.rotary_emb.inv_freq of qk, model.score_bias.weight"
    said = capsys.readouterr().err
    assert f"begins with step 6 of {first.folder}; left out: {left}\n" in said


LEARNED = "pe.trainable=log"


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
    source: Callable[..., Trainer], go_on: GoOn, theirs: str, ours: str, taken: dict[str, str]
) -> None:
    """The first pair of sites that learns is named `inv_freq`, so names do not identify sites."""
    first = source(LEARNED, f"pe={theirs}", "optim.lr=0.1")
    second = go_on("ours", LEARNED, f"pe={ours}")
    for name, parameter in second.decoder.model.rotary_emb.named_parameters():
        expected = torch.zeros_like(parameter)
        if name in taken:
            expected = first.decoder.model.rotary_emb.get_parameter(taken[name])
            assert bool((expected != 0).any())
        assert torch.equal(parameter, expected)


def test_a_context_is_extended(source: Callable[..., Trainer], go_on: GoOn) -> None:
    """No weight's shape depends on seq_len, so a run may begin with weights of shorter rows."""
    first = source("pe=qk_rope")
    ours = go_on("ours", "train.seq_len=64", "pe.base=500000", "model.window=40")
    assert same(snapshot(ours), snapshot(first))
    assert ours.train() == "finished"


def test_a_learned_token_shift_is_taken_over(source: Callable[..., Trainer], go_on: GoOn) -> None:
    first = source("model.token_shift=true", "optim.lr=0.05")
    learned = snapshot(first)["model.layers.1.self_attn.token_shift"]
    assert not torch.equal(learned, torch.full_like(learned, 0.5))
    assert same(snapshot(go_on("ours", "model.token_shift=true", "pe=nope")), snapshot(first))


# -- refused weights -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("theirs", "ours", "words"),
    [
        (["model.qk_norm=true"], [], "has model.layers.0.self_attn.k_norm.weight of [16], for whi"),
        (
            ["model.token_shift=true"],
            [],
            "has model.layers.0.self_attn.token_shift of [32], for wh",
        ),
        ([], ["attn=mla"], "has model.layers.0.self_attn.k_proj.weight of [32, 32], for which"),
        ([], ["model.intermediate_size=48"], "has model.layers.0.mlp.down_proj.weight of [32, 64]"),
        (
            ["pe.input=learned"],
            ["pe.input=learned", "train.seq_len=32"],
            "has model.added_positions.weight of [16, 32], and here it is of [32, 32]",
        ),
        (
            ["pe.trainable=true"],
            ["pe.trainable=true", "pe.trainable_scope=layer"],
            "has model.rotary_emb.inv_freq of [8], and here it is of [2, 8]",
        ),
    ],
)
def test_weights_that_do_not_fit_are_refused(
    source: Callable[..., Trainer], go_on: GoOn, theirs: list[str], ours: list[str], words: str
) -> None:
    """The error names the first tensor that does not fit, and its shape."""
    source(*theirs)
    with refused("run.init_from=", words, by=ConfigError):
        go_on("ours", *ours)


def test_another_tokenizer_is_refused(source: Callable[..., Trainer], go_on: GoOn) -> None:
    """The vocabulary keeps its size, but two tokens swap their ids."""
    first = source()
    path = first.folder / "tokenizer.json"
    values = read_json(path)
    values["model"]["vocab"] |= {"a": 98, "b": 97}
    write_json(path, values)
    with refused("run.init_from=", "has another tokenizer"):
        go_on("ours")


def test_weights_that_were_changed_are_refused(
    source: Callable[..., Trainer], tiny: Tiny, tmp_path: Path
) -> None:
    """They must match both init_weights and the manifest of their checkpoint."""
    first = source()
    words = ("launch.device=cpu", f"run.init_from={first.folder}", f"init_weights={'a' * 64}")
    with refused("has other weights than init_weights=aaaaaaaaaaaa"):
        build_trainer(tiny(*words), tmp_path / "ours")

    newest = checkpoint.step_folder(first.folder / "checkpoints", 6)
    content = (newest / "model.safetensors").read_bytes()
    (newest / "model.safetensors").write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with refused("model.safetensors does not verify against its manifest"):
        build_trainer(with_origin(tiny(*words[:2])), tmp_path / "ours")


# -- resuming --------------------------------------------------------------------------------------


def test_it_goes_on_from_its_own_checkpoints(source: Callable[..., Trainer], go_on: GoOn) -> None:
    """Resuming is exact, to the last bit and with the same hashes, once the source is deleted."""
    first = source("pe=qk_rope")
    words = ("pe=qkvo_rope", "train.save_every=2")
    whole = go_on("whole", *words)
    assert whole.train() == "finished"

    parted = go_on("parted", *words)
    env = environment(parted.config, parted.parallel, {})
    assert env["init_from"]["config_sha256"] == first.config.config_sha256
    assert env["init_from"]["weights_sha256"] == parted.config.init_weights
    stop_in_step(parted, 4)
    assert (parted.train(), parted.step) == ("stopped", 4)
    shutil.rmtree(first.folder)

    again = go_on("parted", *words)
    assert environment(again.config, again.parallel, env)["init_from"] == env["init_from"]
    assert (again.step, again.train()) == (4, "finished")
    assert losses(again) == losses(whole)
    assert same(snapshot(again), snapshot(whole))
    for key in ("init_sha256", "shared_init_sha256", "order_sha256", "val/loss"):
        results = [read_result(trainer.folder) or {} for trainer in (again, whole)]
        assert results[0][key] == results[1][key]


def test_a_run_without_a_checkpoint_that_verifies_is_refused(
    source: Callable[..., Trainer], go_on: GoOn
) -> None:
    """It must not silently begin again from the source's weights."""
    source()
    ours = go_on("ours", "train.save_every=2")
    assert ours.train() == "finished"
    for path in ours.folder.glob("checkpoints/*/state.json"):
        path.write_text("{")
    with refused("no checkpoint under", "verifies"):
        go_on("ours", "train.save_every=2")
