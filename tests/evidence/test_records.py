"""Tests of records: they are written from a real run, read back equal, and refused if changed."""

import functools
import gzip
import json
import math
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.campaigns import records_of
from support.refused import refused
from support.reports import ask, begun_from, make_run, sha256_of

from rope_exp import load_runs
from rope_exp.campaign.campaign import pack
from rope_exp.errors import RecordError
from rope_exp.files import read_json, write_json
from rope_exp.folder import read_config, write_config
from rope_exp.records import (
    canonical,
    digest,
    read_record,
    read_records,
    recorded_campaigns,
    write_record,
)
from rope_exp.runs import read_run

NAME = "vo-optim.betas=_0.9,_0.95_-s3"


@pytest.fixture
def record(recorded: Path, tmp_path: Path) -> Path:
    """Return the path of a copy of a real run's record, which a test may damage."""
    path = tmp_path / "mine" / f"{NAME}.json"
    path.parent.mkdir()
    shutil.copy(recorded / "results/records/mine" / path.name, path)
    return path


def of_folder(recorded: Path) -> Path:
    return recorded / "results/runs/mine" / NAME


def copy_of(recorded: Path, tmp_path: Path) -> Path:
    """Return a copy of the run's folder, which a test may change."""
    folder = tmp_path / "runs" / "mine" / NAME
    shutil.copytree(of_folder(recorded), folder)
    return folder


FACTORS = {"seed": 3, "optim.betas": [0.9, 0.95]}


# -- written and read back -------------------------------------------------------------------------


def test_a_record_is_what_the_runs_folder_says(recorded: Path, record: Path) -> None:
    """The record's config, result, curve, environment and probes equal those in the run's files."""
    folder = of_folder(recorded)
    run = read_run(folder)
    found = read_record(record)

    assert found.config.numeric == run.config.numeric
    assert found.result == run.result
    assert found.probes == read_json(folder / "probes.json")
    env = read_json(folder / "env.json")
    assert found.env == {key: env[key] for key in found.env}
    assert {"torch", "cpu", "git", "num_threads", "corpus", "started"} <= found.env.keys()
    assert (found.where, found.group, found.row) == (f"mine/{NAME}", "mine", "vo")
    assert found.factors == {"seed": 3, "optim.betas": [0.9, 0.95]}

    assert len(found.metrics) == len(run.metrics) == 200
    for ours, theirs in zip(found.metrics, run.metrics, strict=True):
        assert ours == {key: theirs[key] for key in ours}
        assert ("val/loss" in ours) == ("val/loss" in theirs)


def test_a_record_says_what_its_run_began_with(tmp_path: Path) -> None:
    """The record keeps the hash of the initial weights and their run, but not that run's path."""
    began = begun_from(sha256_of("weights"))
    words = ["run.init_from=/nowhere/source", *began["overrides"]]
    env = {"device": "a CPU", "torch": "2.13.0", **began["env"]}
    folder = make_run(tmp_path, overrides=words, result=began["result"], env=env)
    path = tmp_path / "mine" / "qk-s0.json"
    write_record(path, folder, "qk", {"seed": 0})

    run = read_record(path)
    assert run.config.init_weights == sha256_of("weights")
    assert run.config.run.init_from is None
    assert run.env["init_from"] == env["init_from"]
    assert "/tmp" not in path.read_text()


def test_a_record_says_nothing_of_where_it_was_run(record: Path) -> None:
    """Records are committed, so they hold no local path, user name or tracker."""
    values = read_json(record)
    assert not {"run", "tracker"} & values["config"].keys()
    assert str(Path.home()) not in record.read_text()
    assert "/tmp" not in record.read_text()


def test_the_same_folder_gives_the_same_bytes(recorded: Path, tmp_path: Path) -> None:
    for name in ("one", "two"):
        write_record(tmp_path / name / "mine" / f"{NAME}.json", of_folder(recorded), "vo", FACTORS)
    one, two = (tmp_path / name / "mine" / f"{NAME}.json" for name in ("one", "two"))
    assert one.read_bytes() == two.read_bytes()
    assert one.read_bytes() == (recorded / "results/records/mine" / one.name).read_bytes()


def test_every_record_of_a_campaign_is_found(recorded: Path, tmp_path: Path) -> None:
    records = recorded / "results/records"
    assert recorded_campaigns(records) == ["mine"]
    assert [run.row for run in read_records(records, "mine")] == ["qk", "vo"]
    assert recorded_campaigns(tmp_path) == read_records(tmp_path, "mine") == []


def test_packed_records_are_the_same_in_one_file(recorded: Path, tmp_path: Path) -> None:
    """A cell that is done later has a file beside the packed ones, until all are packed again."""
    shutil.copytree(recorded / "results/records", records := tmp_path / "records")
    before = read_records(records, "mine")
    first, second = sorted((records / "mine").glob("*.json"))
    later = second.read_bytes()
    second.unlink()
    packed = pack(records, "mine")
    second.parent.mkdir()
    second.write_bytes(later)

    for _ in range(2):
        found = read_records(records, "mine")
        assert [replace(run, folder=Path()) for run in found] == [
            replace(run, folder=Path()) for run in before
        ]
        assert recorded_campaigns(records) == ["mine"]
        assert load_runs(records).index.to_list() == [run.where for run in before]
        assert len(load_runs(records / "mine")) == 2
        pack(records, "mine")
    assert [*records.iterdir()] == [packed]
    assert gzip.decompress(packed.read_bytes()).splitlines(keepends=True)[1] == later
    assert f"{packed}/{first.stem}.json" == str(read_records(records, "mine")[0].folder)


@pytest.mark.parametrize("harm", ["cut", "changed", "doubled", "another"])
def test_harmed_packed_records_are_refused(recorded: Path, tmp_path: Path, harm: str) -> None:
    shutil.copytree(recorded / "results/records", records := tmp_path / "records")
    first, _ = sorted((records / "mine").glob("*.json"))
    content = first.read_text()
    packed = pack(records, "mine")
    lines = gzip.decompress(packed.read_bytes()).splitlines(keepends=True)
    wrong = content.replace('"status":"finished"', '"status":"diverged"')
    said = "was changed since it was written"
    if harm == "cut":
        packed.write_bytes(packed.read_bytes()[:-9])
        said = "cannot be read"
    elif harm == "changed":
        packed.write_bytes(gzip.compress(wrong.encode()))
    elif harm == "doubled":
        packed.write_bytes(gzip.compress(b"".join([*lines, lines[0]])))
        said = f"has two records of {first.stem}"
    else:
        first.parent.mkdir()
        first.write_text(wrong)
        said = "differs from the record of this cell in"
    with refused(str(packed), said):
        read_records(records, "mine")


def test_a_record_holds_no_path_of_a_cache(recorded: Path, tmp_path: Path) -> None:
    """The cache's path changes no number, and is valid on one machine only."""
    folder = copy_of(recorded, tmp_path)
    write_config(folder, read_config(folder).replace("data", cache_dir="/a/cache"))
    path = tmp_path / "mine" / f"{NAME}.json"
    write_record(path, folder, "vo", FACTORS)
    assert "/a/cache" not in path.read_text()
    assert read_record(path).config.data.cache_dir is None


DIRTY = {"git": {"commit": "0123456789abcdef", "dirty": True}}
RESUMED = {
    "git": {"commit": "0123456789abcdef", "dirty": False},
    "marks": ["its words are not read"],
    "earlier_git": [None, {"commit": "0123456789abcdef", "dirty": True}],
}
# As version 0.2.0 wrote it.
OLD = {"git": RESUMED["git"], "marks": ["went on with git 0123456789 after 0123456789+"]}


@pytest.mark.parametrize("env", [DIRTY, RESUMED, OLD], ids=["at the end", "earlier", "old"])
def test_code_of_no_commit_leaves_no_record(
    recorded: Path, tmp_path: Path, env: dict[str, Any]
) -> None:
    """Each start of a run imports the tree anew, and may see edits after the campaign's check."""
    folder = copy_of(recorded, tmp_path)
    write_json(folder / "env.json", read_json(folder / "env.json") | env)
    path = tmp_path / "mine" / f"{NAME}.json"
    with refused(NAME, "code that was changed since 0123456789: remove it", by=RecordError):
        write_record(path, folder, "vo", FACTORS)
    assert not path.exists()

    clean = {
        "git": RESUMED["git"],
        "marks": ["went on with git 0123456789 after 9876543210"],
        "earlier_git": [{"commit": "9876543210abcdef", "dirty": False}],
    }
    write_json(folder / "env.json", read_json(folder / "env.json") | clean)
    write_record(path, folder, "vo", FACTORS)
    assert read_record(path).env["git"] == RESUMED["git"]


def test_a_probe_that_is_not_finite_is_null(recorded: Path, tmp_path: Path) -> None:
    """The file holds null, since JSON has no NaN; reading it gives NaN, which figures leave out."""
    folder = copy_of(recorded, tmp_path)
    probes = read_json(folder / "probes.json")
    probes["shift"]["loss"][-1] = None
    ask(folder, probes)
    path = tmp_path / "mine" / f"{NAME}.json"
    write_record(path, folder, "vo", FACTORS)
    *finite, last = read_record(path).probes["shift"]["loss"]
    assert finite == probes["shift"]["loss"][:-1]
    assert math.isnan(last)
    assert read_json(path)["probes"] == probes


@pytest.mark.parametrize("harm", ["no result", "no metrics", "no probes"])
def test_a_folder_that_is_not_whole_leaves_no_record(
    recorded: Path, tmp_path: Path, harm: str
) -> None:
    """A record that cannot be read back is not written; otherwise the cell would count as done."""
    folder = tmp_path / NAME
    shutil.copytree(of_folder(recorded), folder)
    name = {"result": "result.json", "metrics": "metrics.jsonl", "probes": "probes.json"}
    (folder / name[harm.split()[1]]).unlink()

    path = tmp_path / "records/mine" / f"{NAME}.json"
    with refused(NAME, harm.split()[1], by=RecordError):
        write_record(path, folder, "vo", FACTORS)
    assert not path.exists()


# -- one changed digit -----------------------------------------------------------------------------

PLACES = {
    "config": r'"lr":0.00(3)',
    "config, a key that changes no number": r'"log_every":(1)',
    "env": r'"num_threads":(1)',
    "result": r'"val/loss":\d\.\d(\d)',
    "curve": r'"train/loss":\[\d\.\d(\d)',
    "probe": r'"windows":\{"loss":\[\d\.\d(\d)',
    "factors": r'"factors":\{.*?"seed":(3)\}',
    "digest": r'"sha256":"[0-9a-f]*?(\d)',
    "format": r'"format":(1)',
}


@pytest.mark.parametrize("place", PLACES)
def test_one_digit_that_was_changed_is_found(record: Path, place: str) -> None:
    text = record.read_text()
    found = re.search(PLACES[place], text)
    assert found is not None, place
    digit = str((int(found[1]) + 1) % 10)
    record.write_text(text[: found.start(1)] + digit + text[found.end(1) :])
    with refused(str(record), "was changed since it was written"):
        read_record(record)


@pytest.mark.parametrize("content", ["", "{}", "[]", "{", "\0", '{"a": NaN}', '{"a": 1e999}'])
def test_a_file_that_is_no_record(record: Path, content: str) -> None:
    record.write_text(content)
    with refused(str(record)):
        read_record(record)


def test_a_record_of_another_name_or_place(record: Path) -> None:
    """A record copied to another cell or campaign would be counted twice, or for the wrong cell."""
    renamed = record.with_name("qk-s3.json")
    moved = record.parent.parent / "yours" / record.name
    moved.parent.mkdir()
    for path in (renamed, moved):
        shutil.copy(record, path)
        with refused(str(path), f"is the record of mine/{NAME}: moved or renamed"):
            read_record(path)


# -- wrong content with a valid digest -------------------------------------------------------------

Edit = Callable[[dict[str, Any]], Any]


def at(*keys: str | int, to: Any) -> Edit:
    """Return an edit that sets the value at one place."""

    def edit(values: dict[str, Any]) -> None:
        inner: Any = values
        for key in keys[:-1]:
            inner = inner[key]
        inner[keys[-1]] = to

    return edit


CONTRADICTIONS: dict[str, tuple[Edit, str]] = {
    "another format": (at("format", to=2), "format=2: must be"),
    "another rate": (at("config", "optim", "lr", to=0.5), "group_sha256"),
    "another seed": (at("config", "seed", to=4), "seed=3"),
    "a key of no version": (at("config", "optim", "rate", to=1), "holds no config"),
    "a config that cannot be": (at("config", "model", "hidden_size", to=-1), "holds no config"),
    "another loss": (at("result", "val/loss", to=1.5), "val/loss"),
    "no loss": (at("result", "val/loss", to=None), "val/loss=null"),
    "no end": (at("result", "status", to="done"), "status=done"),
    "diverged, with a loss": (at("result", "status", to="diverged"), "val/loss"),
    "a time past all years": (at("result", "wall_s", to=1e300), "wall_s=1e+300: must be less than"),
    "a time that is text": (at("result", "wall_s", to="long"), "wall_s=long"),
    "another last loss": (at("curve", "val/loss", -1, to=1.5), "ends with val/loss=1.5"),
    "a step that is text": (at("curve", "step", 0, to="x"), "step="),
    "a step twice": (at("curve", "step", 1, to=1), "steps are out of order"),
    "a loss that is text": (at("curve", "train/loss", 0, to="x"), "curve.train/loss="),
    "a loss that is null": (at("curve", "train/loss", 0, to=None), "curve.train/loss="),
    "an evaluation that is true": (at("curve", "val/loss", 0, to=True), "curve.val/loss="),
    "a shorter column": (lambda values: values["curve"]["step"].pop(), "without a loss"),
    "no column": (lambda values: values["curve"].pop("step"), "curve.step: is missing"),
    "an emptied curve": (
        at("curve", to={"step": [], "train/loss": [], "val/loss": []}), "ends with train/loss=None"
    ),
    "a seed of another cell": (at("factors", "seed", to=4), "do not match"),
    "a factor of another cell": (at("factors", "optim.lr", to=4), "do not match"),
    "another row": (at("row", to="qk"), "do not match"),
    "a probe that is gone": (lambda values: values["probes"].pop("shift"), "holds other probes"),
    "a probe more, of an older run": (
        lambda values: (
            values["result"].pop("probes_sha256"),
            values["probes"].update(ablation={"without": [""], "loss": [1.0]}),
        ),
        "asks for",
    ),
    "an answer that nests without end": (
        at("probes", "shift", "x", to=functools.reduce(lambda inner, _: [inner], range(700), [])),
        "recursion limit",
    ),
    "git that is text": (at("env", "git", to="x"), "git=x"),
    "a torch that is a number": (at("env", "torch", to=2), "torch=2"),
    "another answer": (at("probes", "shift", "loss", 0, to=1.5), "holds other probes"),
    "threads of no run": (at("env", "marks", to=3), "marks=3"),
    "an empty corpus": (at("env", "corpus", "tokens", "train", to=0), "train=0"),
    "no group": (at("env", to=[]), "env"),
    "a key that is gone": (lambda values: values.pop("curve"), "curve: is missing"),
}  # fmt: skip


@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_a_record_that_contradicts_itself(record: Path, name: str) -> None:
    """An edit with a recomputed digest is refused if it contradicts the record's other values."""
    edit, words = CONTRADICTIONS[name]
    values = read_json(record)
    edit(values)
    values["sha256"] = digest(values)
    write_json(record, values)
    with refused(str(record), words, by=RecordError):
        read_record(record)


def test_the_spelling_is_no_part_of_the_digest(record: Path) -> None:
    """A file that git or an editor reformatted still verifies."""
    before = read_record(record)
    record.write_text(json.dumps(read_json(record), indent=4))
    assert read_record(record) == before
    assert canonical({"b": 1, "a": [2, None]}) == '{"a":[2,null],"b":1}\n'


def test_records_are_small(recorded: Path) -> None:
    """Hundreds of records are committed. Curves and probes make up most of their size."""
    for path in records_of(recorded):
        assert path.stat().st_size < 20_000
