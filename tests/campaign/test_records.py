"""Tests of records: they are written from a real run, read back equal, and refused if changed."""

import functools
import gzip
import json
import math
import operator
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.configs import RECORDED
from support.records import copy_records, edit_record, runs_of
from support.refused import refused
from support.reports import ask, begun_from, make_run, sha256_of

from rope_exp import load_runs
from rope_exp.campaign import campaign
from rope_exp.campaign.campaign import pack
from rope_exp.campaign.cells import Campaign, Cell
from rope_exp.campaign.records import (
    cell_name,
    old_cell_name,
    read_record,
    read_records,
    recorded_campaigns,
    write_record,
)
from rope_exp.commands.check_records import main as check_records
from rope_exp.errors import EXIT_FAILED, ConfigError, RunFolderError
from rope_exp.files import read_bytes, read_json, write_atomically, write_json
from rope_exp.folder import read_config, read_run, write_config

NAME = "vo-optim.betas=_0.9,_0.95_-s3"
FACTORS = {"seed": 3, "optim.betas": [0.9, 0.95]}


@pytest.fixture
def record(recorded: Path, tmp_path: Path) -> Path:
    """Return the path of a copy of a real run's record, which a test may damage."""
    path = tmp_path / "mine" / f"{NAME}.json"
    path.parent.mkdir()
    shutil.copy(recorded / "results/records/mine" / path.name, path)
    return path


@pytest.fixture
def folder(recorded: Path, tmp_path: Path) -> Path:
    """Return a copy of the run's folder, which a test may change."""
    return shutil.copytree(recorded / "results/runs/mine" / NAME, tmp_path / "runs" / NAME)


def test_a_record_is_what_the_runs_folder_says(folder: Path, record: Path) -> None:
    """The record's config, result, curve, environment and probes equal those in the run's files.

    A file that git or an editor reformatted still verifies.
    """
    run = read_run(folder)
    record.write_text(json.dumps(read_json(record), indent=4))
    copy = read_record(record)

    assert copy.config.affecting_values == run.config.affecting_values
    assert copy.result == run.result
    assert copy.probes == read_json(folder / "probes.json")
    assert copy.env.items() <= read_json(folder / "env.json").items()
    assert {"torch", "cpu", "git", "num_threads", "corpus", "started"} <= copy.env.keys()
    assert copy.where == f"mine/{NAME}"
    assert copy.group == "mine"
    assert copy.row == "vo"
    assert copy.factors == FACTORS

    assert len(copy.metrics) == 60
    for ours, theirs in zip(copy.metrics, run.metrics, strict=True):
        assert ours.items() <= theirs.items()
        assert ("val/loss" in ours) == ("val/loss" in theirs)


def test_a_record_says_what_its_run_began_with(tmp_path: Path) -> None:
    """The record keeps the hash of the initial weights and their run, but not that run's path."""
    began = begun_from(sha256_of("weights"))
    words = ["run.init_from=/nowhere/source", *began["overrides"]]
    env = {"device": "a CPU", "torch": "2.13.0", **began["env"]}
    path = tmp_path / "mine" / "qk-s0.json"
    folder = make_run(tmp_path, overrides=words, result=began["result"], env=env)
    write_record(path, folder, "qk", {"seed": 0})

    run = read_record(path)
    assert run.config.init_weights == sha256_of("weights")
    assert run.config.run.init_from is None
    assert run.env["init_from"] == env["init_from"]


def test_the_same_folder_gives_the_same_bytes(folder: Path, record: Path, tmp_path: Path) -> None:
    """They hold no local path, user name or tracker, nor the cache's path, and are few."""
    write_config(folder, read_config(folder).replace("data", cache_dir="/a/cache"))
    path = tmp_path / "again" / "mine" / f"{NAME}.json"
    write_record(path, folder, "vo", FACTORS)
    content = path.read_text()
    assert content == record.read_text()
    assert not {"run", "tracker"} & read_json(path)["config"].keys()
    assert not any(word in content for word in ("/a/cache", "/tmp", str(Path.home())))
    assert len(content) < 20_000


def test_packed_records_are_the_same_in_one_file(recorded: Path, tmp_path: Path) -> None:
    """A cell that is done later has a file beside the packed ones, until all are packed again."""
    assert recorded_campaigns(tmp_path) == []
    assert read_records(tmp_path, "mine") == []
    shutil.copytree(recorded / "results/records", records := tmp_path / "records")
    before = [replace(run, folder=Path()) for run in read_records(records, "mine")]
    assert [run.row for run in before] == ["qk", "vo"]
    first, second = sorted((records / "mine").glob("*.json"))
    later = second.read_bytes()
    second.unlink()
    packed = pack(records, "mine")
    second.parent.mkdir()
    second.write_bytes(later)

    for _ in range(2):
        assert [replace(run, folder=Path()) for run in read_records(records, "mine")] == before
        assert recorded_campaigns(records) == ["mine"]
        assert load_runs(records).index.to_list() == [run.where for run in before]
        assert len(load_runs(records / "mine")) == 2
        pack(records, "mine")
    assert [*records.iterdir()] == [packed]
    assert gzip.decompress(packed.read_bytes()).splitlines(keepends=True)[1] == later
    assert f"{packed}/{first.stem}.json" == str(read_records(records, "mine")[0].folder)


def test_a_record_that_arrives_while_others_are_packed_stays(
    recorded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process may write a record between the reading of the folder and its emptying."""
    shutil.copytree(recorded / "results/records", records := tmp_path / "records")
    late = sorted((records / "mine").glob("*.json"))[1]
    content = late.read_bytes()
    late.unlink()

    def write_and_lend(path: Path, packed: bytes) -> None:
        write_atomically(path, packed)
        late.write_bytes(content)

    monkeypatch.setattr(campaign, "write_atomically", write_and_lend)
    pack(records, "mine")
    assert [*(records / "mine").iterdir()] == [late]
    assert len(read_records(records, "mine")) == 2


def test_records_that_are_packed_while_others_are_read_are_found(
    recorded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a campaign would train their cells again."""
    shutil.copytree(recorded / "results/records", records := tmp_path / "records")
    read = read_records(records, "mine")
    is_packed: list[bool] = []

    def pack_first(path: Path) -> bytes:
        if not is_packed:
            is_packed.append(True)
            pack(records, "mine")
        return read_bytes(path)

    monkeypatch.setattr("rope_exp.files.read_bytes", pack_first)
    found = read_records(records, "mine")
    assert [run.where for run in found] == [run.where for run in read]


def test_harmed_packed_records_are_refused(recorded: Path, tmp_path: Path) -> None:
    shutil.copytree(recorded / "results/records", records := tmp_path / "records")
    first, _ = sorted((records / "mine").glob("*.json"))
    wrong = first.read_bytes().replace(b'"status":"finished"', b'"status":"diverged"')
    packed = pack(records, "mine")
    content = packed.read_bytes()
    lines = gzip.decompress(content).splitlines(keepends=True)
    for harmed, words in (
        (content[:-9], "cannot be read"),
        (gzip.compress(wrong), "was changed since it was written"),
        (gzip.compress(b"".join([*lines, wrong])), "differs from the record of this cell in"),
    ):
        packed.write_bytes(harmed)
        with refused(str(packed), words):
            read_records(records, "mine")

    packed.write_bytes(content)
    first.parent.mkdir()
    first.write_bytes(wrong)
    with refused(str(packed), "differs from the record of this cell in"):
        read_records(records, "mine")


CLEAN = {"commit": "0123456789abcdef", "dirty": False}
DIRTY = {"commit": "0123456789abcdef", "dirty": True}


@pytest.mark.parametrize(
    "env", [{"git": DIRTY}, {"git": CLEAN, "earlier_git": [None, DIRTY]}], ids=["last", "earlier"]
)
def test_code_of_no_commit_leaves_no_record(
    folder: Path, tmp_path: Path, env: dict[str, Any]
) -> None:
    """Each start of a run imports the tree anew, and may see edits after the campaign's check."""
    before = read_json(folder / "env.json")
    path = tmp_path / "mine" / f"{NAME}.json"
    write_json(folder / "env.json", before | env)
    with refused(NAME, "code that was changed since 0123456789: remove it", by=RunFolderError):
        write_record(path, folder, "vo", FACTORS)
    assert not path.exists()

    write_json(folder / "env.json", before | {"git": CLEAN, "earlier_git": [CLEAN]})
    write_record(path, folder, "vo", FACTORS)
    assert read_record(path).env["git"] == CLEAN


def test_a_probe_that_is_not_finite_is_null(folder: Path, tmp_path: Path) -> None:
    """The file holds null, since JSON has no NaN; reading it gives NaN, which figures leave out."""
    probes = read_json(folder / "probes.json")
    probes["shift"]["loss"][-1] = None
    ask(folder, probes)
    path = tmp_path / "mine" / f"{NAME}.json"
    write_record(path, folder, "vo", FACTORS)
    *finite, last = read_record(path).probes["shift"]["loss"]
    assert finite == probes["shift"]["loss"][:-1]
    assert math.isnan(last)
    assert read_json(path)["probes"] == probes


@pytest.mark.parametrize("part", ["result", "metrics", "probes", "env"])
def test_a_folder_that_is_not_whole_leaves_no_record(
    folder: Path, tmp_path: Path, part: str
) -> None:
    """A record that cannot be read back is not written; otherwise the cell would count as done."""
    [file] = folder.glob(f"{part}.*")
    file.unlink()
    path = tmp_path / "records/mine" / f"{NAME}.json"
    with refused(NAME, part, by=RunFolderError):
        write_record(path, folder, "vo", FACTORS)
    assert not path.exists()


def test_any_digit_that_was_changed_is_found(record: Path) -> None:
    text = record.read_text()
    digits = [match.start() for match in re.finditer(r"\d", text)]
    for place in digits[:: len(digits) // 60]:
        changed = text[:place] + str((int(text[place]) + 1) % 10) + text[place + 1 :]
        record.write_text(changed)
        # The last digits of a long number may be beyond a float.
        if json.loads(changed) != json.loads(text):
            with refused(str(record), "was changed since it was written"):
                read_record(record)


@pytest.mark.parametrize("content", ["", "{}", "[]", "{", "\0", '{"a": NaN}', '{"a": 1e999}'])
def test_a_file_that_is_no_record(record: Path, content: str) -> None:
    record.write_text(content)
    with refused(str(record)):
        read_record(record)


@pytest.mark.parametrize("place", ["mine/qk-s3.json", f"yours/{NAME}.json"])
def test_a_record_of_another_name_or_place(record: Path, place: str) -> None:
    """A record copied to another cell or campaign would be counted twice, or for the wrong cell."""
    with refused(place, f"is the record of mine/{NAME}: moved, renamed or edited"):
        read_record(Path(place), record.read_bytes())


def test_a_long_name_of_an_older_record_is_read(folder: Path, tmp_path: Path) -> None:
    """Before version 0.3.0 a name had up to 245 bytes. Its cell is done, by either name."""
    factors = FACTORS | {"data.path": "corpus/" + "a" * 180}
    old_name = old_cell_name("vo", factors)
    assert 200 < len(old_name) < 245
    name = cell_name("vo", factors)
    cell = Cell(name, "vo", factors, read_config(folder))
    mine = Campaign("mine", "", None, [cell])
    for stem in (old_name, name):
        path = tmp_path / stem[-5:] / "mine" / f"{stem}.json"
        write_record(path, folder, "vo", factors)
        assert read_record(path).where == f"mine/{stem}"
        assert campaign.Progress(mine, path.parents[1]).left == []
        with refused(f"is the record of mine/{name}: moved, renamed or edited"):
            read_record(path.with_stem(old_name[:-1]), path.read_bytes())


GONE = object()
DEEP: list[Any] = functools.reduce(lambda inner, _: [inner], range(700), [])
# The values at some places, and the words of the refusal.
CONTRADICTIONS: list[tuple[dict[str, Any], str]] = [
    ({"format": 2}, "format=2: must be"),
    ({"config > optim > lr": 0.5}, "config_sha256"),
    ({"config > seed": 4}, "moved, renamed or edited"),
    ({"config > optim > rate": 1}, "config cannot be read: optim.rate"),
    ({"result > val/loss": 1.5}, "val/loss"),
    ({"result > status": "done"}, "status=done"),
    ({"result > wall_s": 1e300}, "wall_s=1e+300: must be less than"),
    ({"curve": GONE}, "curve: is missing"),
    ({"curve > step > 1": 1}, "steps are out of order"),
    ({"curve > step > 1": GONE}, "without a loss"),
    ({"curve > val/loss > 0": True}, "curve.val/loss="),
    ({"curve > val/loss > -1": 1.5}, "1.5 by metrics.jsonl"),
    ({"row": "qk"}, "is the record of mine/qk-"),
    ({"cell": "vo-s3"}, "moved, renamed or edited"),
    ({"result > pe": "qk_rope"}, "pe is 'qk_rope' by result.json"),
    ({"result > rotate": ["v"]}, "rotate is ('v',) by result.json"),
    ({"result > steps": 59}, "tokens is"),
    ({"factors > seed": 4}, "_-s4: moved, renamed or edited"),
    ({"probes > shift": GONE}, "the answers do not match probes_sha256"),
    ({"probes > shift > x": DEEP}, "recursion limit"),
    ({"env > git": "x"}, "git=x"),
    ({"env > corpus > tokens > train": 0}, "train=0"),
]


@pytest.mark.parametrize(("values", "words"), CONTRADICTIONS)
def test_a_record_that_contradicts_itself(record: Path, values: dict[str, Any], words: str) -> None:
    """An edit with a recomputed digest is refused if it contradicts the record's other values."""

    def edit(content: Any) -> None:
        for place, value in values.items():
            keys = [int(key) if key.lstrip("-").isdigit() else key for key in place.split(" > ")]
            last = keys.pop()
            inner = functools.reduce(operator.getitem, keys, content)
            inner[last] = value
            if value is GONE:
                del inner[last]

    edit_record(record, edit)
    with refused(str(record), words, by=RunFolderError):
        read_record(record)


# -- rope-exp check-records --------------------------------------------------------------------


def test_whole_and_harmed_records_are_told_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The last two are valid by themselves, but saw different tokens at one seed."""
    _, nope = copy_records(tmp_path, "english", "qk_rope-s0", "nope-s0")
    file, _ = copy_records(tmp_path, "tokens", *(f"nope-train.num_steps=2000-s{k}" for k in (0, 1)))
    assert check_records([str(tmp_path)]) == 0
    assert "english: 2 records are whole, and may be compared" in capsys.readouterr().out

    file.write_text(file.read_text().replace('"val/loss":', '"val/loss":1', 1))
    edit_record(nope, lambda record: record["result"].update(order_sha256="0" * 64))
    assert check_records([str(tmp_path)]) == EXIT_FAILED
    other, harmed = capsys.readouterr().out.splitlines()
    assert other.startswith("english: ")
    assert "order_sha256" in other
    assert harmed.startswith("tokens: ")
    assert str(file) in harmed


def test_the_stored_campaigns_are_whole(capsys: pytest.CaptureFixture[str]) -> None:
    """Other tests read them, and ask for rows and seeds that are there."""
    assert check_records([str(RECORDED)]) == 0
    counts = re.findall(r"^(\w+): (\d+) records are whole", capsys.readouterr().out, re.MULTILINE)
    assert sum(int(count) for _, count in counts) == 59
    for name, row, seed in (("no", "qk_rope", 0), ("english", "no", 0), ("lr", "nope", 1)):
        with pytest.raises(AssertionError, match=r"holds no records|lacks"):
            runs_of(name, row, seeds=(seed,))


def test_a_folder_without_records_is_refused(tmp_path: Path) -> None:
    with refused("FOLDER=", "holds no CAMPAIGN", by=ConfigError):
        check_records([str(tmp_path)])
