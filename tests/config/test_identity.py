"""Tests of the hashes that identify runs, which must never change."""

import dataclasses
import json
import shutil
import subprocess
import sys
from operator import attrgetter
from pathlib import Path

import pytest
from support.configs import NINE, REPOSITORY

from rope_exp.compose import run_config
from rope_exp.config import RunConfig, flat
from rope_exp.decoder import Decoder, weights, weights_sha256
from rope_exp.identity import choice_names, import_choice, metadata_of
from rope_exp.sections import DataConfig, PeConfig

# Every key with its default: identities leave out defaults, so they would not show a change of
# one. A new key is added to the file with its default; existing lines never change. `settings` are
# in no identity; `of_tokens` are in the fingerprint of prepared data, where a missing one would
# serve stale tokens; `variant_parameters` give a variant parameters.
SCHEMA = json.loads((REPOSITORY / "tests/stored/schema.json").read_text())

# The first 16 digits of config_sha256 and group_sha256. Hashes cover departures from the schema's
# defaults, and presets may depart: `nano` does with its warmup, which is set back here.
WARMUP = "schedule.warmup_fraction=0.05"
HASHES = {
    "": "44136fa355b3678a 44136fa355b3678a",
    "attn=softmax train.log_every=3": "44136fa355b3678a 44136fa355b3678a",
    "model.head_dim=64": "44136fa355b3678a 44136fa355b3678a",
    "pe=vo_rope": "be053c82d26df225 44136fa355b3678a",
    "seed=3 pe=qkvo_rope pe.base=500000": "9aca423dcbd58274 44136fa355b3678a",
    "model=1b data=fineweb_edu": "3f93ef319468b043 3f93ef319468b043",
    "schedule=wsd optim.lr=0.001 train.precision=fp32": "d4960b590dca73be d4960b590dca73be",
    "model=sequel tokenizer=bytes data.seed=7 train.micro_batch_size=4": (
        "52f410580fa7d8c3 52f410580fa7d8c3"
    ),
    "attn=mla": "dc46fe5d41d5c73a dc46fe5d41d5c73a",
    "attn=shared_s1 model.window=64": "ea41696d3a04f0fb ea41696d3a04f0fb",
    "attn=decay pe=vo_rope attn.gamma=learned": "c01dbb875f8fa89c c129835e11cb2f24",
    "optim=muon": "cff3586e2f638063 cff3586e2f638063",
    "train.objective=mlm": "fbfc3521e8873c54 fbfc3521e8873c54",
    "pe=vo_rope train.stages=[[512,200],[128,300,16]]": "66aa614c745b3292 b25c10a0f0d2065f",
}
# The initial weights of all nine variants at the default size, unchanged since the first table.
INIT_SHA256 = "974a1ad689b595d8052f2b532ed25f5543828304e29755ad3a3f36e2959d55ab"


def test_defaults_and_facts_are_what_they_were() -> None:
    values = RunConfig().to_dict()
    assert values == SCHEMA["defaults"]
    for choice, defaults in SCHEMA["choices"].items():
        folder, name = choice.split("/")
        found = dataclasses.asdict(import_choice(folder, name, folder).Config())
        assert json.loads(json.dumps(found)) == defaults

    affecting = flat(RunConfig().affecting_values)
    assert flat(values).keys() - affecting.keys() == set(SCHEMA["settings"])
    assert [*metadata_of(DataConfig, "of_tokens", "data.")] == SCHEMA["of_tokens"]
    assert [*metadata_of(PeConfig, "variant_parameters", "pe.")] == SCHEMA["own_parameters"]


def test_the_needs_of_every_key_can_be_met() -> None:
    """Each name in `needs` is an attribute of a run's config, and each value is allowed there."""
    sections = [getattr(RunConfig(), field.name) for field in dataclasses.fields(RunConfig)]
    for folder in ("attn", "optim", "schedule"):
        sections += [import_choice(folder, name, folder).Config() for name in choice_names(folder)]
    needs = set()
    for section in filter(dataclasses.is_dataclass, sections):
        needs.update(" ".join(metadata_of(section, "needs").values()).split())

    assert len(needs) > 5
    for needed in needs:
        name, _, wanted = needed.partition("=")
        attrgetter(name)(RunConfig())
        if wanted:
            of_section, _, key = name.partition(".")
            RunConfig.from_dict({of_section: {key: wanted}})


@pytest.mark.parametrize("words", HASHES)
def test_hashes_are_what_they_were(words: str) -> None:
    config = run_config([WARMUP, *words.split()])
    assert f"{config.config_sha256[:16]} {config.group_sha256[:16]}" == HASHES[words]


@pytest.mark.parametrize("name", NINE)
def test_the_nine_begin_where_they_always_began(name: str) -> None:
    decoder = Decoder(run_config([f"pe={name}"]).architecture(2048))
    decoder.initialise(0)
    assert weights_sha256(weights(decoder)) == INIT_SHA256


NEW_KEY = """    # Leave out documents that were there before.
    dedup: bool = affects_result(False, kinds=TEXT, of_tokens=True)
"""
USE = """
import sys
sys.path.insert(0, "scripts")
import config_doc
from rope_exp.compose import run_config
from rope_exp.config import differing_keys
from rope_exp.prepare import _folder as data_folder

plain, other = run_config([]), run_config(["data.dedup=true"])
assert plain.config_sha256 == sys.argv[1]
assert plain.config_sha256 != other.config_sha256
assert data_folder(plain.data, plain.tokenizer) != data_folder(other.data, other.tokenizer)
changes = differing_keys(plain.affecting_values, other.affecting_values)
assert changes == ["data.dedup: false -> true"]
row = "| `data.dedup` | `false` | a valid boolean | Leave out documents that were there before. |"
assert row in config_doc.text()
"""


def test_a_key_is_added_in_one_place(tmp_path: Path) -> None:
    """A key of a copy of the package is in all that is derived from its declaration."""
    for folder in ("rope_exp", "scripts", "configs"):
        shutil.copytree(REPOSITORY / folder, tmp_path / folder)
    path = tmp_path / "rope_exp" / "sections.py"
    head, mark, rest = path.read_text().partition("    # Maximum number of tokens that are prep")
    path.write_text(head + NEW_KEY + mark + rest)
    words = [sys.executable, "-c", USE, run_config([]).config_sha256]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
