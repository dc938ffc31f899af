"""Tests that every choice and experiment makes the runs that it always made.

tests/stored/compositions.json holds a hash for each group of choices. A hash that
differs means that a committed file or a default changed what it says. A new choice changes the hash
of its group; `python tests/config/test_compositions.py` then writes the file anew.
"""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from rope_exp.compose import CAMPAIGNS, CONFIGS, compose_runs
from rope_exp.config import RunConfig
from rope_exp.files import json_sha256

PINS = Path(__file__).parents[1] / "stored" / "compositions.json"
# What a choice needs beside itself.
NEEDS = {
    "data=files": ["data.path=somewhere"],
    "data=hub": ["data.path=some/where"],
    "tokenizer=pretrained": ["tokenizer.path=somewhere"],
    "tokenizer=task": ["data=addition"],
    "attn=decay": ["pe=vo_rope"],
}
# Keys that there were when the hashes were written.
GONE = {
    "tracker": {"entity": None, "tags": [], "notes": None, "run_name": None},
    "launch": {"inline": False},
    "run": {"fresh": False},
}
# Keys that were added since, each with a default that keeps the behaviour.
ADDED = {"launch": {"exceed_memory": False}, "run": {"trust_code": False}}
FOLDERS = {path.parent for path in CONFIGS.glob("*/*.yaml")} | {*CONFIGS.glob("row/*")}
GROUPS = sorted({folder.relative_to(CONFIGS).as_posix() for folder in FOLDERS} - {CAMPAIGNS})
LONG = pytest.param("experiment", marks=pytest.mark.torture)


def described(configs: Iterable[RunConfig]) -> Iterator[Any]:
    for config in configs:
        names = (config.name, config.group, str(config.folder), config.attn.label)
        values = config.to_dict()
        for section, gone in GONE.items():
            values[section] |= gone
        for section, added in ADDED.items():
            for key, default in added.items():
                assert values[section].pop(key) == default
        yield [values, config.config_sha256, config.group_sha256, *names]


def choices_sha256(group: str) -> str:
    found = {}
    for path in sorted((CONFIGS / group).glob("*.yaml")):
        word = f"{group}={path.stem}"
        added = "+" if group.startswith(("experiment", "row")) else ""
        composed = compose_runs([f"{added}{word}", *NEEDS.get(word, [])])
        found[path.stem] = list(described(composed.configs))
        for config in composed.configs:
            assert RunConfig.from_dict(config.to_dict()) == config
            # So that --cfg and TAB show its keys before the class of the choice is imported.
            if group in ("attn", "optim", "schedule"):
                assert set(yaml.safe_load(path.read_text())) == set(config.to_dict()[group]), path
    return json_sha256(found)


@pytest.mark.parametrize("group", [LONG if name == "experiment" else name for name in GROUPS])
def test_every_choice_is_what_it_was(group: str) -> None:
    assert choices_sha256(group) == json.loads(PINS.read_text())["choices"][group]


if __name__ == "__main__":
    pins = {
        "choices": {group: choices_sha256(group) for group in GROUPS},
    }
    PINS.write_text(json.dumps(pins, indent=1) + "\n")
