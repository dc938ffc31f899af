"""Tests of `write_campaigns` on copies of stored records, some of them edited."""

import json
import re
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from support.records import copy_records, edit_record
from support.refused import refused

from rope_exp.campaign.campaign import pack
from rope_exp.campaign.records import cell_name, read_records, recorded_campaigns
from rope_exp.campaign.tables import ANSWER, write_campaigns
from rope_exp.commands.check_records import main as check_records
from rope_exp.errors import ConfigError
from rope_exp.folder import to_config
from rope_exp.report import Report, write_all

pytestmark = pytest.mark.usefixtures("undrawn")


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the figures, which take most of the time and are not checked here."""
    monkeypatch.setattr(Report, "charts", {})


@pytest.mark.parametrize(("key", "other"), [("torch", "9.0"), ("num_threads", 64)])
def test_a_block_that_was_computed_in_two_ways_is_refused(
    tmp_path: Path, key: str, other: Any
) -> None:
    """Levels of a factor share no table, so each may come from a machine of its own."""
    steps = ("train.num_steps=1000", "train.num_steps=2000")
    cells = (f"qk_rope-{steps[0]}-s0", f"qk_rope-{steps[1]}-s0", f"vo_rope-{steps[1]}-s0")
    paths = copy_records(tmp_path / "records", "tokens", *cells)
    for path in paths[1:]:
        edit_record(path, lambda record: record["env"].update({key: other}))
    write_campaigns(tmp_path / "records", "tokens", tmp_path)
    assert (tmp_path / "tokens" / steps[0] / "table.md").exists()

    copy_records(tmp_path / "records", "tokens", cells[2])
    with refused(f"seed 0 of tokens has runs with {key} ", str(other)):
        write_campaigns(tmp_path / "records", None, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_campaign_without_records_is_refused(tmp_path: Path) -> None:
    copy_records(tmp_path / "records", "english", "qk_rope-s0")
    with refused("holds no records of campaign table. Available: english"):
        write_campaigns(tmp_path / "records", "table", tmp_path / "out")
    with refused("empty holds no campaign records"):
        write_campaigns(tmp_path / "empty", None, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_tables_of_a_campaign_are_in_results_by_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A campaign that is named like a file of results/ needs a folder of the user's."""
    monkeypatch.chdir(tmp_path)
    copy_records(Path("results/records"), "english", "qk_rope-s0", "nope-s0")
    write_campaigns(Path("results/records"), None)
    assert Path("results/english/table.csv").exists()
    assert Path("results/report.html").exists()

    [record] = copy_records(Path("more"), "english", "qk_rope-s0")
    edit_record(record, lambda values: values.update(campaign="runs"))
    record.parent.rename("more/runs")
    for name in ("runs", None):
        with refused("--campaign=runs: must be none of ", by=ConfigError):
            write_campaigns(Path("more"), name)
    assert not Path("results/runs").exists()
    write_campaigns(Path("more"), "runs", Path("mine"))
    assert Path("mine/runs/table.csv").exists()


def test_tables_may_lie_beside_the_records(tmp_path: Path) -> None:
    """The report's listing is JSON, too, and is no record."""
    [record] = copy_records(tmp_path, "english", "qk_rope-s0")
    for _ in range(2):
        write_campaigns(tmp_path, None, tmp_path)
    assert {path.name for path in (tmp_path / "english").glob(".*.json")} == {".written.json"}
    pack(tmp_path, "english")
    assert not record.exists()
    # The folder has the table alone, and the packed records are still those of one campaign.
    write_campaigns(tmp_path, None, tmp_path)
    assert recorded_campaigns(tmp_path) == ["english"]
    assert len(read_records(tmp_path, "english")) == 1


def test_only_all_campaigns_make_the_page(tmp_path: Path) -> None:
    """One campaign alone makes no page, which would lack the others."""
    copy_records(tmp_path / "records", "english", "qk_rope-s0", "nope-s0")
    copy_records(tmp_path / "records", "tokens", "qk_rope-train.num_steps=1000-s0")
    write_campaigns(tmp_path / "records", "english", tmp_path)
    assert not (tmp_path / "report.html").exists()
    write_campaigns(tmp_path / "records", None, tmp_path)
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    # Each link leads to a file that was written with the page.
    links = [unquote(link) for link in re.findall('href="([^"#]*)"', text)]
    assert "english/table.csv" in links
    assert [link for link in links if not (tmp_path / link).is_file()] == []


def move_to(path: Path, data_path: str) -> None:
    """Make a record one of another data.path, by which its campaign then has a factor."""
    set_factor(path, "path", data_path)


def set_factor(path: Path, key: str, value: Any) -> None:
    """Make a key of `data` a factor of a record, with another value than before."""

    def edit(values: dict[str, Any]) -> None:
        values["config"]["data"][key] = value
        values["factors"][f"data.{key}"] = value
        values["cell"] = cell_name(values["row"], values["factors"])
        config = to_config(values["config"])
        values["result"] |= {
            "config_sha256": config.config_sha256,
            "group_sha256": config.group_sha256,
        }

    edit_record(path, edit)
    path.rename(path.with_name(f"{json.loads(path.read_text())['cell']}.json"))


def test_a_value_that_leads_elsewhere_is_a_name_here(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A record from somebody else can be whole, and have any text as a factor."""
    out = tmp_path / "a/b/c/out"
    for cell in ("qk_rope-s0", "nope-s0"):
        [record] = copy_records(tmp_path / "records", "english", cell)
        move_to(record, "../../../../<img>")
    assert check_records([str(tmp_path / "records")]) == 0
    write_campaigns(tmp_path / "records", None, out)
    tables = {path.relative_to(out) for path in tmp_path.rglob("table.md")}
    assert tables == {Path("english/data.path=.._.._.._..__img_/table.md")}
    assert "<img>" not in (out / tables.pop()).read_text()


def test_records_that_make_no_table_are_not_said_to_be_comparable(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A campaign that varies the order of tokens has none."""
    for cell in ("qk_rope-s0", "nope-s0"):
        [record] = copy_records(tmp_path, "english", cell)
        set_factor(record, "seed", 7)
    assert check_records([str(tmp_path)]) == 0
    assert capsys.readouterr().out == "english: 2 records are whole, and make no table\n"


def test_two_values_with_one_name_are_refused(tmp_path: Path) -> None:
    """Otherwise, one table would take the other's place."""
    for cell, path in (("qk_rope-s0", "a/b"), ("nope-s0", "a_b")):
        [record] = copy_records(tmp_path / "records", "english", cell)
        move_to(record, path)
    with refused("are not comparable (data.path"):
        write_campaigns(tmp_path / "records", None, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_page_of_all_leaves_a_group_s_table_alone(tmp_path: Path) -> None:
    """A group's table has a list of its files, and `report --campaign all` is no later one."""
    group = {"table.csv": b"of a group", "report.html": b"of a group"}
    write_all(tmp_path / "out", group)
    copy_records(tmp_path / "records", "english", "qk_rope-s0")
    write_campaigns(tmp_path / "records", None, tmp_path / "out")
    assert (tmp_path / "out/table.csv").read_bytes() == b"of a group"
    assert b"<html" in (tmp_path / "out/report.html").read_bytes()


def test_the_page_opens_on_the_words_beside_the_records(tmp_path: Path) -> None:
    """A file that is no text is refused before anything is written."""
    records = tmp_path / "records"
    copy_records(records, "english", "qk_rope-s0", "nope-s0")
    (records / ANSWER).write_text("**QK leads.**\n", encoding="utf-8")
    write_campaigns(records, None, tmp_path / "out")
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert '<p class="answer"><strong>QK leads.</strong></p>' in page.replace("\n", "")

    (records / ANSWER).write_bytes(b"\xff")
    with refused(ANSWER):
        write_campaigns(records, None, tmp_path / "other")
    assert not (tmp_path / "other").exists()
