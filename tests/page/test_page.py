"""Tests of the page without a browser: policy, texts, tables, and reproducible bytes."""

import base64
import html
import re
from collections.abc import Mapping
from dataclasses import replace

import pytest
from support.configs import REPOSITORY
from support.pages import HOSTILE, make_hostile, make_tables
from support.records import report_on, runs_of, unfinished

from rope_exp.page.report import page
from rope_exp.report import Report, build, main_table, relations_table


def undrawn(tables: Mapping[str, Report]) -> str:
    """Return the page without figures, which take most of the time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Report, "charts", {})
        return page(tables, [run for report in tables.values() for run in report.runs]).decode()


@pytest.fixture(scope="module")
def tables() -> dict[str, Report]:
    return make_tables()


@pytest.fixture(scope="module")
def text(tables: dict[str, Report]) -> str:
    return undrawn(tables)


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


def test_the_policy_lets_nothing_out(text: str) -> None:
    """The policy allows nothing except the page's own style and images within it."""
    [found] = re.findall(r'<meta http-equiv="Content-Security-Policy" content="([^"]*)">', text)
    rules = dict(rule.split(" ", 1) for rule in found.split("; "))
    assert rules.pop("default-src") == "'none'"
    assert rules.pop("img-src") == "data:"
    assert rules.pop("style-src") == "'unsafe-inline'"
    assert rules == {"base-uri": "'none'", "form-action": "'none'"}
    assert "<script" not in text


def test_the_page_loads_nothing(text: str) -> None:
    """Links lead only to a setting, or to a file beside the page."""
    assert not re.search(r"\b(src|action|srcset|poster|style)\s*=|url\(|@import", text)
    links = re.findall(r'href="([^"]*)"', text)
    own = re.compile(r"#[\w/.=-]+|records/[\w/%.-]+\.json(l\.gz)?|[\w/%.-]+/table\.(csv|md)")
    assert links
    assert [link for link in links if not own.fullmatch(link)] == []


def test_texts_of_records_are_no_markup() -> None:
    """Markup in the names of rows, corpora and runs is escaped."""
    hostile = page(make_hostile(), []).decode()
    assert HOSTILE not in hostile
    assert hostile.count("<img") == hostile.count('<img src="data:image/svg+xml;base64,') == 3
    assert html.escape(HOSTILE, quote=False).replace("'", "&#39;") in hostile


def test_numbers_are_those_of_the_tables(text: str, tables: dict[str, Report]) -> None:
    for place, report in tables.items():
        markup = section(text, place)
        assert shown(markup, 0) == main_table(report).cells
        if report.relations:
            # The table of runs comes last.
            assert shown(markup, -2) == relations_table(report).cells


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


def test_what_is_missing_is_said() -> None:
    runs = runs_of("english", "qk_rope", "nope", seeds=(0,))
    runs[1] = unfinished(replace(runs[1], probes={}))
    assert "unfinished" in undrawn({"nine": build(runs, ["pe"])})
    text = undrawn({})
    assert "No campaign has records to compare yet." in text
    assert "<table" not in text


def test_assets_are_of_the_package() -> None:
    """A wheel includes the assets."""
    pyproject = (REPOSITORY / "pyproject.toml").read_text(encoding="utf-8")
    assert '"rope_exp.page" = ["page.css", "page.html.j2"]' in pyproject
