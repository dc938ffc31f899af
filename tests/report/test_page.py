"""Tests of the page without a browser: policy, texts, tables, and reproducible bytes."""

import base64
import html
import re
from collections.abc import Mapping
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import pytest
from support.configs import REPOSITORY
from support.pages import HOSTILE, make_hostile, make_run, make_runs, make_tables, rotation
from support.records import make_records

from rope_exp.evidence.runs import Run
from rope_exp.report import command
from rope_exp.report.charts import style
from rope_exp.report.charts.curves import curves
from rope_exp.report.charts.forest import forest
from rope_exp.report.charts.grid import grid
from rope_exp.report.command import write_campaigns
from rope_exp.report.content import Report, build
from rope_exp.report.page import PARTS, page
from rope_exp.report.page_settings import answer, at_a_glance, named
from rope_exp.report.pairs import relations_columns, relations_frame
from rope_exp.report.spelling import cells
from rope_exp.report.tables import columns, frame


def undrawn(tables: Mapping[str, Report]) -> str:
    """Return the page without figures, which take most of the time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(PARTS, "image", lambda draw, report: None)
        return page(tables, runs_of(tables)).decode()


def runs_of(tables: Mapping[str, Report]) -> list[Run]:
    """Return the runs of all tables, each once."""
    return list({run.where: run for report in tables.values() for run in report.runs}.values())


@pytest.fixture(scope="module")
def tables() -> dict[str, Report]:
    return make_tables()


@pytest.fixture(scope="module")
def text(tables: dict[str, Report]) -> str:
    return undrawn(tables)


@pytest.fixture(scope="module")
def drawn(tables: dict[str, Report]) -> str:
    return page(tables, runs_of(tables)).decode()


def section(text: str, place: str) -> str:
    """Return the markup of a setting."""
    found = text.partition(f'<section class="setting" id="{place}"')[2]
    assert found
    return found.partition("</section>")[0]


def shown(markup: str, number: int) -> list[list[str]]:
    """Return the texts of a table's cells by line, with the headings first."""
    table = re.findall(r"<table.*?</table>", markup, re.DOTALL)[number]
    lines = re.findall(r"<tr>.*?</tr>", table, re.DOTALL)
    found = [re.findall(r"<t[hd]\b[^>]*>(.*?)</t[hd]>", line, re.DOTALL) for line in lines]
    return [[html.unescape(re.sub("<[^>]*>", "", cell)) for cell in line] for line in found]


# -- content security ------------------------------------------------------------------------------


def test_the_policy_lets_nothing_out(text: str) -> None:
    """The policy allows nothing except the style and the images within the page."""
    found = re.findall(r'<meta http-equiv="Content-Security-Policy" content="([^"]*)">', text)
    assert len(found) == 1
    rules = dict(rule.split(" ", 1) for rule in found[0].split("; "))
    assert rules.pop("default-src") == "'none'"
    assert rules.pop("img-src") == "data:"
    assert rules.pop("style-src") == "'unsafe-inline'"
    assert rules == {"base-uri": "'none'", "form-action": "'none'"}
    assert "<script" not in text


def test_the_page_loads_nothing(text: str) -> None:
    """Links lead only to a setting, or to a file beside the page."""
    assert not re.search(r"\b(src|action|srcset|poster|style)\s*=|url\(|@import", text)
    links = re.findall(r'href="([^"]*)"', text)
    own = re.compile(r"#[\w/.=-]+|records/[\w/%.-]+\.json|[\w/%.-]+/table\.(csv|md)")
    assert links
    assert [link for link in links if not own.fullmatch(link)] == []


def test_texts_of_records_are_no_markup(tables: dict[str, Report]) -> None:
    """Markup in the names of rows, corpora and runs is escaped."""
    hostile = page(make_hostile(), []).decode()
    assert HOSTILE not in hostile
    assert hostile.count("<img") == hostile.count('<img src="data:image/svg+xml;base64,') == 3
    assert html.escape(HOSTILE, quote=False).replace("'", "&#39;") in hostile


# -- content ---------------------------------------------------------------------------------------


def test_numbers_are_those_of_the_tables(text: str, tables: dict[str, Report]) -> None:
    for place, report in tables.items():
        markup = section(text, place)
        assert shown(markup, 0) == cells(columns(report), frame(report))
        if report.relations:
            expected = cells(relations_columns(report), relations_frame(report))
            assert shown(markup, 1) == expected


def test_every_setting_has_its_figures(drawn: str, tables: dict[str, Report]) -> None:
    """Each setting holds the files of its report's forest, grid and curves."""
    for place, report in tables.items():
        data = re.findall(r'<img src="data:image/svg\+xml;base64,(.*?)"', section(drawn, place))
        files = [style.drawn(draw, report) for draw in (forest, grid, curves)]
        assert [base64.b64decode(each) for each in data] == files


def test_settings_are_named_and_ordered(text: str, tables: dict[str, Report]) -> None:
    """The setting with the most runs comes first, then the others by tokens."""
    names = [setting.name for setting in named(tables)]
    assert names == [
        "text, 2M tokens, warmup 100 (nine)",
        "text, 4.1M tokens, warmup 200 (tokens/train.num_steps=1000)",
        "text, 8.2M tokens, warmup 400 (tokens/train.num_steps=2000)",
    ]
    assert re.findall("<details(.*)>\n<summary><h2>(.*?)</h2>", text) == [
        (" open", names[0]),
        ("", names[1]),
        ("", names[2]),
    ]


def test_the_answer_says_no_more_than_the_test(text: str, tables: dict[str, Report]) -> None:
    """The answer counts the published relations by outcome, and calls no row better."""
    report = tables["nine"]
    said = answer(report)
    assert said.startswith(f"Of {len(report.relations)} published relations: ")
    for relation in report.relations:
        a, b = (report.rows[each].name for each in (relation.judged.a, relation.judged.b))
        named = f"{a} {relation.published} {b}".replace("-RoPE", "")
        group = said.partition(relation.outcome)[2].partition(")")[0]
        assert named in group
    assert "better" not in said
    assert html.unescape(said) in html.unescape(text)
    untested = answer(tables["tokens/train.num_steps=1000"])
    assert untested == "No difference from QK-RoPE has been tested yet."


@pytest.mark.parametrize(("shift", "word"), [(-0.3, "better"), (0.3, "worse")])
def test_the_answer_has_the_verdicts_direction(shift: float, word: str) -> None:
    runs = []
    for row, more in (("qk_rope", 0.0), ("vo_rope", shift)):
        for seed in range(3):
            loss = 4.0 + more + 0.01 * seed + 0.001 * (seed % 2) * (row == "vo_rope")
            runs.append(make_run("nine", rotation(row), seed, loss))
    report = build(runs, ["pe"])
    assert answer(report).startswith(f"VO-RoPE is {word} than QK-RoPE: ")


def test_the_glance_has_each_tables_differences(tables: dict[str, Report]) -> None:
    """Settings whose reference is another row, or has no loss, are left out."""
    without = build(make_runs("few", ("nope", "vo_rope")), ["pe"])
    glance = at_a_glance(named({**tables, "few": without}))
    assert glance["places"] == [
        "nine",
        "tokens/train.num_steps=1000",
        "tokens/train.num_steps=2000",
    ]
    headings, *lines = glance["table"].lines
    for place, line in zip(glance["places"], lines, strict=True):
        found = dict(zip(headings[1:], line[1:], strict=True))
        report = tables[place]
        for row in report.rows.values():
            if row.label != "qk_rope":
                verdict = row.label in report.against
                number, _, word = found.pop(row.name).partition(" ")
                assert number == f"{row.ours.delta:+.4f}"
                assert bool(word) == verdict
        assert set(found.values()) <= {"—"}


def test_runs_link_to_their_records(text: str, tables: dict[str, Report]) -> None:
    markup = section(text, "nine")
    for run in tables["nine"].runs:
        assert f'href="records/{run.where}.json">{run.where}</a>' in markup
        assert f"<code>{run.config.config_sha256}</code>" in markup
    # There are nine variants with three seeds, and four at two budgets with one seed.
    assert "results of 35 training" in " ".join(text.split())


def test_a_run_without_a_loss_is_shown() -> None:
    runs = make_runs("nine", ("qk_rope", "nope"), (0,))
    runs[1] = replace(runs[1], result={}, metrics=[])
    found = undrawn({"nine": build(runs, ["pe"])})
    assert "unfinished" in found


# -- whole page ------------------------------------------------------------------------------------


def test_the_same_runs_give_the_same_page(drawn: str) -> None:
    """The order of the tables does not matter."""
    again = dict(reversed(make_tables().items()))
    assert page(again, runs_of(again)).decode() == drawn


def test_a_page_without_settings_says_so() -> None:
    text = undrawn({})
    assert "No campaign has records to compare yet." in text
    assert "<table" not in text


def test_assets_are_of_the_package() -> None:
    """A wheel includes the assets, and none is longer than 300 lines."""
    there = {each.name: each for each in files("rope_exp.report").joinpath("assets").iterdir()}
    assert there.keys() == {"page.html.j2", "page.css"}
    for name, asset in there.items():
        assert len(asset.read_text(encoding="utf-8").splitlines()) <= 300, name
    pyproject = (REPOSITORY / "pyproject.toml").read_text(encoding="utf-8")
    assert '"rope_exp.report" = ["assets/*"]' in pyproject


def test_all_campaigns_make_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One campaign alone makes no page, which would lack the others."""
    # Tables and figures have tests of their own.
    monkeypatch.setattr(command, "_table_files", lambda *_: {})
    records = tmp_path / "records"
    out = tmp_path / "out"
    make_records(records, "mini", rows=("qk_rope", "nope"), seeds=(0, 1))
    make_records(records, "other", rows=("vo_rope",), seeds=(0,))
    assert write_campaigns(records, "mini", out) == []

    made = write_campaigns(records, None, out)
    assert made == [str(out / "report.html")]
    text = (out / "report.html").read_text(encoding="utf-8")
    assert 'href="mini/table.csv"' in text
    assert 'href="records/other/vo_rope-s0.json"' in text
