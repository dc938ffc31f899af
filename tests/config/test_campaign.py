"""Tests of campaigns: the order and names of their cells, and one-sentence errors for bad files."""

import itertools
import shlex
from pathlib import Path
from typing import Any

import pytest
from support.campaigns import FIXED, ROWS, load, names, write_campaign
from support.refused import refused

from rope_exp.campaign.cells import campaign_files, load_campaign
from rope_exp.campaign.records import cell_name
from rope_exp.commands.campaign import main as command
from rope_exp.compose import run_config
from rope_exp.errors import ConfigError

RUNS = Path("results/runs")


def test_the_example_composes(capsys: pytest.CaptureFixture[str]) -> None:
    """Its cells are two rows at three seeds, and leave nothing open."""
    example = load_campaign("example", None, RUNS)
    wanted = [f"{row}-s{seed}" for seed in range(3) for row in ("qk_rope", "vo_rope")]
    assert names(example) == wanted
    assert {cell.config.data.kind for cell in example.cells} == {"stdlib"}
    assert len({cell.config.group_sha256 for cell in example.cells}) == 1
    assert command(["example", "--list"]) == 0
    stdout = capsys.readouterr().out
    assert stdout.startswith(example.about)
    assert "example: 0 of 6 cells have a record" in stdout


def test_cells_are_as_composed_one_by_one(tmp_path: Path) -> None:
    """Seeds share one composition unless a key refers to the seed; the cells are the same."""
    follows = tmp_path / "experiment" / "follows.yaml"
    follows.parent.mkdir()
    follows.write_text("# @package _global_\ndata:\n  seed: ${seed}\n")
    rows = {"qk": ["pe=qk_rope"], "follows": ["pe=vo_rope", "+experiment=follows"]}
    cells = ["seed=3,5 optim.lr=0.1", "row=qk seed=7"]

    mine = load(tmp_path, rows=rows, cells=cells)
    assert len(mine.cells) == 5
    for cell in mine.cells:
        given = [f"{key}={value}" for key, value in cell.factors.items()]
        words = [*FIXED, *rows[cell.row], *given, f"run.dir='{cell.config.run.dir}'"]
        assert cell.config == run_config(words, tmp_path)
        if cell.row == "follows":
            assert cell.config.data.seed == cell.config.seed


def test_every_beginning_is_balanced(tmp_path: Path) -> None:
    """A campaign that stops anywhere is balanced: no row is more than one seed ahead.

    Within a seed, longer cells come first, so that the last to end is short. Seeds come in their
    listed order, and cells of one length in the order of the rows.
    """
    mine = load(tmp_path, cells=["seed=7,3 train.num_steps=2,6"])
    assert names(mine) == [
        "qk-train.num_steps=6-s7",
        "vo-train.num_steps=6-s7",
        "qk-train.num_steps=2-s7",
        "vo-train.num_steps=2-s7",
        "qk-train.num_steps=6-s3",
        "vo-train.num_steps=6-s3",
        "qk-train.num_steps=2-s3",
        "vo-train.num_steps=2-s3",
    ]


def test_the_first_seeds_of_all_entries_come_first(tmp_path: Path) -> None:
    """Entries alternate seed by seed; among pairs of seeds, data.seed varies fastest."""
    cells = ["row=qk seed=1,2 data.seed=7", "row=vo seed=5,6 data.seed=8,9"]
    assert names(load(tmp_path, cells=cells)) == [
        "qk-data.seed=7-s1",
        "vo-data.seed=8-s5",
        "qk-data.seed=7-s2",
        "vo-data.seed=9-s5",
        "vo-data.seed=8-s6",
        "vo-data.seed=9-s6",
    ]


def test_factors_keep_their_types(tmp_path: Path) -> None:
    """Records store factors as numbers, booleans and lists; no name depends on their order."""
    cells = ["row=vo seed=4 optim.lr=1e-3 optim.betas=[0.9,0.95] data.reset_positions=true"]
    [cell] = load(tmp_path, cells=cells).cells
    factors = {"seed": 4, "optim.lr": 0.001, "optim.betas": [0.9, 0.95]}
    assert cell.factors == {**factors, "data.reset_positions": True}
    assert type(cell.factors["seed"]) is int
    assert cell.config.folder == RUNS / "mine" / cell.name
    for order in itertools.permutations(cell.factors.items()):
        assert cell_name("vo", dict(order)) == cell.name


def test_a_factor_may_be_a_list_null_or_a_group(tmp_path: Path) -> None:
    """Values are spelled as on the command line, and the cell's name is a valid file name."""
    cells = [
        "row=qk seed=0 data.seed=1 train.probes=[],[windows,shift]",
        "row=qk seed=0 data.seed=null schedule=wsd",
    ]
    configs = {cell.name: cell.config for cell in load(tmp_path, cells=cells).cells}

    listed = configs.pop("qk-data.seed=1-train.probes=__windows_,__shift__-s0")
    assert listed.train.probes == ("windows", "shift")
    assert configs.pop("qk-data.seed=1-train.probes=__-s0").train.probes == ()
    other = configs.pop("qk-data.seed=null-schedule=wsd-s0")
    assert other.data.seed is None
    assert other.schedule.name == "wsd"
    assert not configs


def test_a_name_is_one_of_a_file() -> None:
    """The name is one visible path component that cannot climb, whatever a value holds."""
    name = cell_name("a b", {"data.path": "../..//x\\y:*?", "seed": 0})
    assert name == "a_b-data.path=.._..__x_y___-s0"


def test_a_folder_of_ones_own_comes_first(tmp_path: Path) -> None:
    """The user's campaigns hide ours of the same name, and add to them."""
    assert "example" in campaign_files()
    mine = load(tmp_path, "example", about="my own", cells=["row=vo seed=0"])
    assert mine.about == "my own"
    assert names(mine) == ["vo-s0"]
    write_campaign(tmp_path, "other")
    assert "other" in campaign_files(tmp_path)
    assert "other" not in campaign_files()


def test_rows_that_are_more_than_variants_are_named(tmp_path: Path) -> None:
    """Either all cells get a row_name or none does; factors do not count as a difference."""
    rows = {"qk": ["pe=qk_rope"], "vo": ["pe=vo_rope"]}
    cells = ["seed=0 model.hidden_size=64,128"]
    plain = load(tmp_path, rows=rows, cells=cells).cells
    assert [cell.config.row_name for cell in plain] == [None] * 4
    kinds = load(tmp_path, rows=rows | {"far": ["attn=retention"]}, cells=cells).cells
    assert [cell.config.row_name for cell in kinds] == [cell.row for cell in kinds]
    rows["vo"].append("row_name=other")
    named = load(tmp_path, rows=rows, cells=cells).cells
    assert [cell.config.row_name for cell in named] == [None] * 4
    # The row's name is not part of the identity.
    hashes = {cell.config.config_sha256 for cell in kinds}
    assert {cell.config.config_sha256 for cell in plain} < hashes


@pytest.mark.parametrize("name", ["", ".", "../campaign/mine", "your"])
def test_no_such_campaign_lists_those_that_there_are(tmp_path: Path, name: str) -> None:
    write_campaign(tmp_path)
    with refused("campaign=", f"there is {', '.join(campaign_files(tmp_path))}", by=ConfigError):
        load_campaign(name, tmp_path, RUNS)


@pytest.mark.parametrize("name", ["_smoke", "a(1)", "x" * 65])
def test_a_campaign_whose_records_could_not_have_its_name_is_refused(
    tmp_path: Path, name: str
) -> None:
    write_campaign(tmp_path, name)
    with refused(f"campaign={name}: must be 1 to 64 letters", by=ConfigError):
        load_campaign(name, tmp_path, RUNS)


def test_a_key_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    """YAML's own loader would take the last value."""
    write_campaign(tmp_path)
    path = tmp_path / "campaign" / "mine.yaml"
    path.write_text(f"{path.read_text()}\nabout: again\nabout: and again\n")
    with refused("mine.yaml: cannot be read: about is there twice, again in line", by=ConfigError):
        load_campaign("mine", tmp_path, RUNS)


def test_a_campaign_named_like_a_file_of_results_is_refused(tmp_path: Path) -> None:
    with refused("campaign=bench: must be none of README.md, bench, ", by=ConfigError):
        load(tmp_path, "bench")


@pytest.mark.parametrize("text", ["rows: [", "about: \udcff", "[" * 5000])
def test_a_file_that_cannot_be_read(tmp_path: Path, text: str) -> None:
    write_campaign(tmp_path).write_bytes(text.encode(errors="surrogateescape"))
    with refused("mine.yaml", "cannot be read", by=ConfigError):
        load_campaign("mine", tmp_path, RUNS)


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"about": 3}, "mine.about=3: must be a valid string"),
        ({"fixed": "pe=nope"}, "mine.fixed=pe=nope: must be a valid array"),
        ({"rows": {}}, "at least 1 item"),
        ({"rows": {"../x": []}}, "must be 1 to 64"),
        ({"cells": [3]}, "cells=[3]: must be an object"),
        ({"cells": [{"sweep": "seed=0", "row": 1}]}, "there is no such key"),
        ({"seeds": [0]}, "campaign/mine.seeds: there is no such key"),
    ],
)
def test_a_key_of_another_type(tmp_path: Path, values: dict[str, Any], sentence: str) -> None:
    with refused("campaign/mine.", sentence, by=ConfigError):
        load(tmp_path, **values)


# Each line is the sweep of a cell, and words of the sentence.
SWEEPS = """
train.num_steps=2 | seed: must be a valid integer
seed=-1 | seed=-1: must be
seed=range(0,0) | seed: the sweep is empty
seed | seed: cannot be read as key=value
seed=0 'optim.lr=0.1 | No closing quotation
seed=0 optim.lr=nan | qk-optim.lr=NaN-s0: optim.lr=NaN: must be
seed=0 row=your | row=your: must be one of qk, vo
seed=0 pe=nope | pe: is what row qk says itself
seed=0,0 | qk-s0: is listed twice
seed=0 launch.num_threads=1 | launch.num_threads: changes no num
seed=0 train.probes=[shift] | train.probes: changes no number
"""


@pytest.mark.parametrize("line", SWEEPS.strip().splitlines())
def test_a_cell_that_is_none(tmp_path: Path, line: str) -> None:
    sweep, sentence = line.split("| ")
    with refused("campaign/mine.cells.0: ", sentence, by=ConfigError):
        load(tmp_path, cells=[sweep.strip()])


# Each line is a word of a row, and the sentence.
OPEN = f"""
train.precision=auto | train.precision=auto: must be fixed
launch.num_processes=all | launch.num_processes=all: must be fixed
launch=slurm | launch: is given to `rope-exp campaign NAME launch=...`
+experiment=seeds | is a sweep of several runs, and a cell is one
optim.lr=1e-3,2e-3 | optim.lr: several values make a sweep
run.group=x | run.group=x: is not for a cell
data=fineweb_edu data.revision=main | data.revision=main: must be a commit
tokenizer=pretrained tokenizer.path=owner/name | tokenizer.revision=null: must be a commit
data.path=/a/corpus | data.path=/a/corpus: must be relative: records are committed
tokenizer=pretrained tokenizer.path=/a/b tokenizer.revision={"a" * 40} | path=/a/b: must be relative
run.init_from=results/runs/a/b | init_weights=null: must be the hash of what run.init
run.init_from=/a/run init_weights={"a" * 64} | run.init_from=/a/run: must be relative: records
"""


@pytest.mark.parametrize("line", OPEN.strip().splitlines())
def test_a_cell_that_leaves_something_open(tmp_path: Path, line: str) -> None:
    """The error names the entry, the cell and the fault."""
    words, sentence = line.split(" | ")
    rows = {"qk": [*ROWS["qk"], *shlex.split(words)]}
    with refused("campaign/mine.cells.0: qk-s0: ", sentence, by=ConfigError):
        load(tmp_path, rows=rows)


def test_the_corpus_of_the_library_needs_its_python(tmp_path: Path) -> None:
    rows = {"qk": [*ROWS["qk"], "data=stdlib", "data.path=null"]}
    with refused("campaign/mine.python: is missing", by=ConfigError):
        load(tmp_path, rows=rows)


def test_what_an_entry_fixes_is_in_no_name(tmp_path: Path) -> None:
    """An entry's `fixed` applies only to its own cells; the row and the factors override it."""
    fixed = ["train.global_batch_size=8", "optim.lr=0.2", "pe=nope"]
    cells = ["seed=0", {"sweep": "row=qk seed=1 optim.lr=0.1", "fixed": fixed}]
    mine = {cell.name: cell.config for cell in load(tmp_path, cells=cells).cells}
    assert mine.keys() == {"qk-s0", "vo-s0", "qk-optim.lr=0.1-s1"}
    assert mine["qk-s0"].train.global_batch_size == 4
    config = mine["qk-optim.lr=0.1-s1"]
    assert config.train.global_batch_size == 8
    assert config.optim.lr == 0.1
    assert config.pe.rotate == ("q", "k")


def test_some_blocks_of_two_orders_are_refused(tmp_path: Path) -> None:
    """A table would compare runs that saw different tokens."""
    cells = ["row=qk seed=0", "row=vo seed=0 data.seed=1"]
    with refused("cells.1: data.seed: must be a factor of every cell", by=ConfigError):
        load(tmp_path, cells=cells)


def test_a_variant_in_two_rows_gives_names(tmp_path: Path) -> None:
    """Otherwise its runs of one seed could share no table."""
    rows = {"lo": ["pe=qk_rope", "optim.lr=0.001"], "hi": ["pe=qk_rope", "optim.lr=0.003"]}
    cells = load(tmp_path, rows=rows, cells=["seed=0,1"]).cells
    assert [cell.config.row_name for cell in cells] == [cell.row for cell in cells]
