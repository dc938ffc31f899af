"""Tests of reading run folders one by one: damaged, edited or copied ones are refused by name."""

import re
from pathlib import Path

import pytest
from support.refused import refused
from support.reports import ask, make_run

from rope_exp.commands.report import find_groups
from rope_exp.folder import Run, read_runs


def read(runs: Path) -> list[Run]:
    return read_runs([runs / "g"])[0]


def test_groups_are_named_and_not_mixed_unless_asked_for(tmp_path: Path) -> None:
    with refused("holds no runs", "rope-exp train +experiment=nine"):
        find_groups(tmp_path, None)
    for group in ("lr-low", "lr-high", "other"):
        make_run(tmp_path, group=group)
    (tmp_path / "empty").mkdir()
    with refused("a run with a custom run.dir must be moved to such a folder"):
        find_groups(tmp_path / "other" / "qk_rope", None)
    with refused("holds 3 groups", "lr-high, lr-low, other"):
        find_groups(tmp_path, None)
    with refused(
        "holds no group named mine, but a table takes one", "Available for --group: lr-high"
    ):
        find_groups(tmp_path, "mine")
    assert find_groups(tmp_path, "other") == [tmp_path / "other"]
    matching = find_groups(tmp_path, "lr-*", several=True)
    assert matching == [tmp_path / "lr-high", tmp_path / "lr-low"]
    assert len(find_groups(tmp_path, None, several=True)) == 3


@pytest.mark.parametrize("name", ["config.yaml", "result.json", "metrics.jsonl", "env.json"])
def test_what_is_no_run_is_left_out_by_name(tmp_path: Path, name: str) -> None:
    """A table of the others is still possible; folders that a user hid are passed over."""
    make_run(tmp_path, pe="vo_rope")
    broken = make_run(tmp_path, pe="nope")
    (broken / name).write_text("x\n")
    for other in ("vo_rope/notes", ".hidden", "vo_rope/.seed0.old-1"):
        (tmp_path / "g" / other).mkdir()
    runs, left_out = read_runs([tmp_path / "g"])
    assert [run.where for run in runs] == ["g/vo_rope/seed0"]
    assert sorted(left_out) == ["g/nope/seed0", "g/vo_rope/notes"]
    assert str(broken / name) in left_out["g/nope/seed0"]


def test_a_run_says_what_its_folder_does(tmp_path: Path) -> None:
    make_run(tmp_path, pe="pe.base=500000", loss=3.25)
    make_run(tmp_path, pe="k_rope", loss=None, steps=250)
    make_run(tmp_path, pe="nope", loss=None, steps=130, result={})
    runs = {run.variant_name: run for run in read(tmp_path)}
    finished = runs["QK-RoPE base500000"]
    assert finished.status == "finished"
    assert finished.loss == 3.25
    assert runs["K-RoPE"].status == "unfinished"
    assert runs["K-RoPE"].loss is None
    assert runs["NoPE"].status == "diverged"
    assert runs["NoPE"].loss is None


ENV = '{"marks": [], "started": [], '
# The file, a pattern and its replacement, and the words of the refusal; None removes the file.
HARMS = [
    ("config.yaml", None, "", "config.yaml"),
    ("config.yaml", ".+", "seed: late\n", "config.yaml"),
    ("config.yaml", "lr: 0.003", "lr: 0.004", "config_sha256"),
    ("result.json", ".+", "{", "result.json"),
    ("result.json", '"val/loss": 3.5', '"val/loss": NaN', "NaN is not JSON"),
    ("result.json", '"val/loss": 3.5', '"val/loss": true', "val/loss"),
    ("result.json", '"config_sha256": "[^"]+', f'"config_sha256": "{"0" * 64}', "config_sha256"),
    ("result.json", '"pe": "qk_rope"', '"pe": "vo_rope"', "pe is 'vo_rope' by result.json"),
    ("result.json", r'"rotate": \[[^]]*', '"rotate": ["v"', "rotate is ('v',) by result.json"),
    ("result.json", '"seed": 0', '"seed": 1', "seed is 1 by result.json"),
    ("result.json", '"steps": 500', '"steps": 450', "tokens is"),
    ("result.json", '"group_sha256": "[^"]+', f'"group_sha256": "{"0" * 64}', "group_sha256"),
    ("env.json", ".+", "null", "env.json"),
    ("env.json", ".+", '{"marks": "late"}', "env.json"),
    ("env.json", ".+", ENV + '"corpus": {"tokens": {"train": 0}}}', "env.json"),
    ("probes.json", None, "", "probes.json"),
    ("probes.json", "3.75", "3.5", "probes.json"),
    ("probes.json", r".{9}\Z", "", "probes.json"),
    ("metrics.jsonl", None, "", "val/loss is 3.5 by result.json, but None"),
    ("metrics.jsonl", ".+", '{"step": 1, "train/loss": "low"}\n', "metrics.jsonl"),
    ("metrics.jsonl", '"val/loss": 3.5}', '"val/loss": 3.25}', "3.25 by metrics.jsonl"),
    ("metrics.jsonl", r"{[^{]*\Z", "", "None by metrics.jsonl"),
    ("metrics.jsonl", r"\Z", '{"step": 510, "train/loss": 1}\n', "None by metrics.jsonl"),
]


@pytest.mark.parametrize(("name", "pattern", "new", "words"), HARMS)
def test_a_harmed_file_is_refused_by_name(
    tmp_path: Path, name: str, pattern: str | None, new: str, words: str
) -> None:
    """A curve must end with the loss of the result, and answers are those whose digest it has."""
    folder = make_run(tmp_path, env={})
    ask(folder, answers := {"windows": {"loss": [3.25, 3.75]}})
    assert read(tmp_path)[0].probes == answers
    path = folder / name
    before = path.read_text()
    path.unlink()
    if pattern is not None:
        harmed = re.sub(pattern, new, before, flags=re.DOTALL)
        assert harmed != before
        path.write_text(harmed)
    with refused(str(folder), words):
        read(tmp_path)


def test_a_curve_past_the_end_of_its_run_is_refused(tmp_path: Path) -> None:
    """A diverged run has no loss to end with."""
    folder = make_run(tmp_path, loss=None, steps=130, result={})
    assert read(tmp_path)[0].status == "diverged"
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 140, "train/loss": 1}\n')
    with refused(str(folder), "goes on to step 140, past the 130 steps of result.json"):
        read(tmp_path)
