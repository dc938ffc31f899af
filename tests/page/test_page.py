"""Tests of the page without a browser: policy, texts, tables, and reproducible bytes."""

import base64
import html
import re
from collections.abc import Mapping
from dataclasses import replace

import pytest
from support.configs import REPOSITORY
from support.records import make_tables, report_on, runs_of, unfinished

from rope_exp.notes.verdicts import relations
from rope_exp.page import LEFT_OUT, cells, page, page_table
from rope_exp.report import Report, build, main_table


def undrawn(tables: Mapping[str, Report]) -> str:
    """Return the page without figures, which take most of the time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Report, "charts", {})
        return page(tables, [run for report in tables.values() for run in report.runs]).decode()


@pytest.fixture(scope="module")
def text() -> str:
    return undrawn(make_tables())


def shown(table: str) -> list[list[str]]:
    """Return the texts of a table's cells by line, with the headings first."""
    lines = re.findall(r"<tr>.*?</tr>", table, re.DOTALL)
    cells = [re.findall(r"<t[hd]\b[^>]*>(.*?)</t[hd]>", line, re.DOTALL) for line in lines]
    return [[html.unescape(re.sub("<[^>]*>", "", cell)) for cell in line] for line in cells]


def test_the_page_loads_and_sends_nothing(text: str) -> None:
    """The policy allows only the page's own style and images; links lead to files beside it."""
    [policy] = re.findall(r'<meta http-equiv="Content-Security-Policy" content="([^"]*)">', text)
    assert set(policy.split("; ")) == {
        "default-src 'none'",
        "img-src data:",
        "style-src 'unsafe-inline'",
        "base-uri 'none'",
        "form-action 'none'",
    }
    assert not re.search(r"<script|\b(src|action|srcset|poster|style)\s*=|url\(|@import", text)
    links = re.findall(r'href="([^"]*)"', text)
    own = re.compile(r"#[\w/.=-]+|[\w/%.-]+/table\.(csv|md)")
    assert links
    assert [link for link in links if not own.fullmatch(link)] == []


HOSTILE = "</script><img src=x onerror=document.title='taken'>"


def make_hostile() -> dict[str, Report]:
    """Return a table in which a row, the corpus and the runs have names with markup."""
    runs = []
    for run in runs_of("english", "qk_rope", "vo_rope", seeds=(0, 1)):
        data = replace(run.config.data)
        object.__setattr__(data, "name", HOSTILE)
        config = replace(run.config, data=data)
        runs.append(replace(run, config=config, where=f"{run.where}{HOSTILE}"))
    report = build(runs, ["pe"])
    row = replace(report.rows["vo_rope"], name=HOSTILE)
    return {"english": replace(report, rows={**report.rows, "vo_rope": row})}


def test_texts_of_records_are_no_markup() -> None:
    """Markup in the names of rows, corpora and runs is escaped."""
    hostile = page(make_hostile(), []).decode()
    assert HOSTILE not in hostile
    assert hostile.count("<img") == 3
    assert hostile.count('<img src="data:image/svg+xml;base64,') == 3
    assert html.escape(HOSTILE, quote=False).replace("'", "&#39;") in hostile


def test_numbers_are_those_of_the_tables(text: str) -> None:
    head, first = text.split('<section class="setting" id="')[:2]
    for place, report in make_tables().items():
        markup = text.partition(f'<section class="setting" id="{place}"')[2].partition("</section>")
        # The first setting's table is above, in the answer.
        answer = head if first.startswith(f'{place}"') else ""
        found = re.findall(r"<table.*?</table>", answer + markup[0], re.DOTALL)
        assert shown(found[0]) == page_table(report).cells
        for table in relations(report):
            assert shown(found[1]) == cells(table)[:1] + cells(table)[2:]


def test_differences_and_verdicts_come_first(text: str) -> None:
    """A narrow screen shows the first columns, and a wide one all of them."""
    report = report_on("english")
    headings = [column.heading for column in page_table(report).columns]
    assert headings[:4] == ["variant", "Δ to QK-RoPE", "verdict", "95 % interval"]
    kept = [column.heading for column in main_table(report).without(*LEFT_OUT).columns]
    assert sorted(headings) == sorted(kept)


def the_answer(text: str) -> list[str]:
    """Return the paragraphs that a page opens on."""
    found = re.findall(r'<p class="(?:answer|more)">(.*?)</p>', text, re.DOTALL)
    return [html.unescape(paragraph) for paragraph in found]


def test_the_page_opens_on_what_is_shown_of_each_variant() -> None:
    """It says in words what the verdicts say, and what few seeds show is provisional."""
    report = report_on("english", "qk_rope", "vo_rope", "nope", seeds=(0, 1, 2))
    [answer] = the_answer(undrawn({"english": report}))
    assert answer.startswith("Against QK-RoPE, over 3 seeds: ")
    assert "NoPE (provisional)" in answer
    assert answer.endswith("QK-RoPE has the best mean loss, NoPE the worst.")
    for row in ("vo_rope", "nope"):
        assert report.rows[row].name in answer


def test_one_seed_shows_no_p_value_as_the_answer() -> None:
    report = report_on("english", "qk_rope", "vo_rope", "nope", seeds=(0,))
    text = undrawn({"english": report})
    [answer] = the_answer(text)
    assert answer.startswith("One seed: no difference can be tested. Best: ")
    assert "p = " not in answer
    # The agreement with the published order is below, in the setting.
    assert "Kendall" in text.partition('<section class="setting"')[2]


def test_the_page_opens_on_words_of_yours() -> None:
    """`**` marks strong words; markup is text."""
    report = report_on("english", "qk_rope", "nope", seeds=(0,))
    text = page({"english": report}, [], "**QK leads** by <b>.\n\nMore.\n").decode()
    assert the_answer(text) == ["<strong>QK leads</strong> by <b>.", "More."]
    assert "<b>" not in text


def test_a_setting_has_its_figures_and_the_same_bytes_again() -> None:
    tables = {"english": report_on("english", "qk_rope", "nope", seeds=(0, 1))}
    drawn = page(tables, [])
    data = re.findall(r'<img src="data:image/svg\+xml;base64,(.*?)"', drawn.decode())
    files = [tables["english"].charts[name] for name in ("forest", "grid", "curves")]
    assert [base64.b64decode(each) for each in data] == files
    assert page(tables, []) == drawn


def test_the_setting_with_the_most_relations_is_open(text: str) -> None:
    names = re.findall(r"<details(.*)>\n<summary><h2>.*?\((.*?)\)</h2>", text)
    assert names[0] == (" open", "english")
    assert [attributes for attributes, _ in names] == [" open", "", ""]


def test_a_campaign_of_several_settings_is_one_line(text: str) -> None:
    """Sixty-five settings in a flat list cannot be searched by eye."""
    _, _, after = text.partition("<h2>tokens: 2 settings</h2></summary>")
    assert after.count("<summary><h2>") == 2
    assert '<details class="campaign">' in text
    assert "<h2>english: " not in text


def test_what_is_missing_is_said() -> None:
    runs = runs_of("english", "qk_rope", "nope", seeds=(0,))
    runs[1] = unfinished(replace(runs[1], probes={}))
    assert "unfinished" in undrawn({"nine": build(runs, ["pe"])})
    text = undrawn({})
    assert "No campaign has records to compare yet." in text
    assert "<table" not in text


def test_one_setting_alone_speaks_of_no_other(text: str) -> None:
    others = ("the others are", "a click opens another")
    report = build(runs_of("english", "qk_rope", "nope", seeds=(0,)), ["pe"])
    alone = " ".join(undrawn({".": report}).split())
    for words in others:
        assert words not in alone
        assert words in " ".join(text.split())


def test_assets_are_of_the_package() -> None:
    """A wheel includes them."""
    pyproject = (REPOSITORY / "pyproject.toml").read_text(encoding="utf-8")
    assert '"page.css", "page.html.j2"]' in pyproject
