"""Tests of training with transformers' Trainer, and of its comparison with our records."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import outside
import pytest
import torch
from outside_trainer import patched_llama, train_cell
from support.records import make_records
from support.refused import refused
from support.trainers import build_trainer

from rope_exp.config.run import RunConfig
from rope_exp.config.variants import SUBSETS
from rope_exp.evidence.records import read_records
from rope_exp.evidence.runs import ReportError
from rope_exp.model.decoder import Decoder, weights
from rope_exp.system.errors import ConfigError, RecordError

Tiny = Callable[..., RunConfig]
# The learning rate is constant, because the Trainer's schedule is one step late.
CONSTANT = ("schedule.warmup_fraction=0", "schedule.final_fraction=1", "train.precision=fp32")


@pytest.mark.parametrize("sites", SUBSETS, ids="".join)
def test_the_patched_llama_is_our_decoder(tiny: Tiny, sites: tuple[str, ...]) -> None:
    """Its logits are our decoder's, and differ by more than 0.1 if v is toggled."""
    architecture = tiny(f"pe.rotate=[{','.join(sites)}]").architecture(64)
    decoder = Decoder(architecture)
    decoder.initialise(0)
    ids_BT = torch.randint(64, (2, 16), generator=torch.Generator().manual_seed(1))

    with torch.no_grad():
        # Larger weights make the effect of a rotation visible.
        for parameter in weights(decoder).values():
            parameter.mul_(8)
        wanted_BTV = decoder(ids_BT)
        llama = patched_llama(architecture)
        llama.load_state_dict(weights(decoder))
        torch.testing.assert_close(llama(ids_BT).logits, wanted_BTV, rtol=1e-4, atol=1e-3)

        others = tuple(site for site in "qkvo" if (site in sites) != (site == "v"))
        llama = patched_llama(tiny(f"pe.rotate=[{','.join(others)}]").architecture(64))
        llama.load_state_dict(weights(decoder))
        assert (llama(ids_BT).logits - wanted_BTV).abs().max() > 0.1


def test_the_trainer_ends_where_our_loop_does(tiny: Tiny, tmp_path: Path) -> None:
    """Both start from equal weights, and take twelve steps of AdamW, clipped, on equal tokens."""
    config = tiny("pe=qkvo_rope", "train.num_steps=12", *CONSTANT)
    ours = build_trainer(config, tmp_path / "ours")
    assert ours.train() == "finished"

    theirs = train_cell(config)
    assert theirs["steps"] == 12
    assert theirs["init_sha256"] == ours.identity["init_sha256"]
    assert theirs["order_sha256"] == ours.train_step.order_sha256
    assert theirs["val/loss"] == pytest.approx(ours.evaluate(), abs=1e-4)
    assert len(theirs["curve"]["loss"]) == 12 // config.train.log_every


@pytest.mark.parametrize(
    ("override", "key"),
    [
        ("pe.fraction=0.5", "pe.fraction"),
        ("pe.layers=[1,0]", "pe.layers"),
        ("pe=alibi", "pe.bias"),
        ("pe=sinusoidal", "pe.input"),
        ("attn=linear", "attn."),
        ("model.window=4", "model.window"),
        ("optim=muon", "optim."),
        ("schedule=wsd", "schedule."),
        ("train.objective=mlm", "train.objective"),
        ("data.document_mask=true", "data.document_mask"),
    ],
)
def test_what_would_not_be_trained_is_refused(tiny: Tiny, override: str, key: str) -> None:
    """Without a refusal, LLaMA and the Trainer would ignore the key, and the hashes would agree."""
    with refused(key, by=ConfigError):
        train_cell(tiny("pe=qk_rope", override) if "pe=" not in override else tiny(override))


# -- comparison with the records -------------------------------------------------------------------


def write_runs(records: Path, out: Path, apart: float = 0.01, **changes: Any) -> None:
    """Write an outside run for each record, with a loss `apart` nats higher."""
    make_records(records, "english", rows=("nope", "qk_rope"), seeds=(0, 1))
    for run in read_records(records, "english"):
        values = {
            "row": run.row,
            "seed": run.config.seed,
            "val/loss": run.result["val/loss"] + apart,
            "env": {"versions": {"torch": "2", "transformers": "5"}},
        }
        values |= {key: run.result[key] for key in outside.ALIKE}
        place = out / "english" / f"{run.row}-s{run.config.seed}.json"
        outside.write_outside(place, values | changes)


def test_losses_stand_beside_those_of_the_records(tmp_path: Path) -> None:
    write_runs(tmp_path / "records", tmp_path / "out")
    files = outside.comparisons(tmp_path / "records", tmp_path / "out")
    text = files["english.md"]
    assert "mean +0.0100 (+0.0100 to +0.0100), SD 0.0000, at most 0.0100" in text
    assert "adjusted for missing seeds: 1.00 over 2 rows" in text
    assert len(files["english.csv"].splitlines()) == 1 + 4


def test_one_run_has_no_deviation(tmp_path: Path) -> None:
    write_runs(tmp_path / "records", tmp_path / "out")
    for path in sorted((tmp_path / "out" / "english").glob("*.json"))[1:]:
        path.unlink()
    text = outside.comparisons(tmp_path / "records", tmp_path / "out")["english.md"]
    assert "mean +0.0100, SD unknown" in text


@pytest.mark.parametrize("key", ["config_sha256", "init_sha256", "order_sha256"])
def test_another_config_weights_or_tokens_are_refused(tmp_path: Path, key: str) -> None:
    write_runs(tmp_path / "records", tmp_path / "out", **{key: "0" * 64})
    with refused(f"differs from its record in {key}", by=ReportError):
        outside.comparisons(tmp_path / "records", tmp_path / "out")


def test_a_row_that_is_not_its_records_is_refused(tmp_path: Path) -> None:
    write_runs(tmp_path / "records", tmp_path / "out", row="vo_rope")
    with refused("differs from its record in row or seed", by=ReportError):
        outside.comparisons(tmp_path / "records", tmp_path / "out")


def test_what_has_no_record_is_refused(tmp_path: Path) -> None:
    write_runs(tmp_path / "records", tmp_path / "out")
    (tmp_path / "records" / "english" / "nope-s0.json").unlink()
    with refused("a cell without a finished record", by=ReportError):
        outside.comparisons(tmp_path / "records", tmp_path / "out")


@pytest.mark.parametrize("damage", ["edited", "copied"])
def test_a_file_that_was_changed_is_refused(tmp_path: Path, damage: str) -> None:
    """The error names the file's path."""
    write_runs(tmp_path / "records", tmp_path / "out")
    path = tmp_path / "out" / "english" / "nope-s0.json"
    values = json.loads(path.read_text())
    if damage == "edited":
        path.write_text(json.dumps(values | {"val/loss": 3.0}))
    else:
        path.with_name("zz.json").write_text(path.read_text())
    with refused("english/", by=RecordError):
        outside.comparisons(tmp_path / "records", tmp_path / "out")
