"""The page without a browser: its policy, its texts, its size, and the same bytes again."""

import json
import re
from importlib.resources import files
from pathlib import Path

import pytest
from support.configs import REPOSITORY
from support.pages import HOSTILE, make_campaigns, make_pilot, make_runs
from support.records import make_records
from support.refused import refused

from rope_exp.report import command
from rope_exp.report import page as page_module
from rope_exp.report.command import write_campaigns
from rope_exp.report.page import SCRIPTS, assemble, chart_library, embedded, page, policy


@pytest.fixture(scope="module")
def text() -> str:
    return page(make_campaigns()).decode()


def strings(value: object) -> list[str]:
    """Every text somewhere within a value."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        return [text for each in value for text in strings(each)]
    return [value] if isinstance(value, str) else []


def test_the_policy_lets_nothing_out(text: str) -> None:
    """Nothing may be loaded, sent, framed or run, but two scripts and a style by their hashes."""
    found = re.findall(r'<meta http-equiv="Content-Security-Policy" content="([^"]*)">', text)
    assert len(found) == 1
    rules = dict(rule.split(" ", 1) for rule in found[0].split("; "))
    assert rules.pop("default-src") == "'none'"
    assert re.fullmatch(r"('sha256-[\w+/=]{44}' ?){2}", rules.pop("script-src"))
    assert re.fullmatch(r"'sha256-[\w+/=]{44}'", rules.pop("style-src"))
    assert rules == {"base-uri": "'none'", "form-action": "'none'"}


def test_the_policy_names_what_the_page_holds(text: str) -> None:
    scripts = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    styles = re.findall(r"<style>(.*?)</style>", text, re.DOTALL)
    assert (len(scripts), len(styles)) == (2, 1)
    assert policy(scripts, styles[0]) in text


def test_the_page_refers_to_nothing_outside(text: str) -> None:
    markup = re.sub(r"<script.*?</script>", "", text, flags=re.DOTALL)
    assert not re.search(r"\b(src|href|action|srcset|poster)\s*=|url\(|@import", markup)
    assert "http://" not in markup
    assert "https://" not in markup


def test_the_page_claims_no_more_than_the_tests(text: str) -> None:
    assert "which differences the tests find" in " ".join(text.split())
    assert "a difference, by the tests" in text
    assert "whether or not the tests tell them apart" in text
    markup = re.sub(r"<script.*?</script>", "", text, flags=re.DOTALL)
    assert not re.search(r"\breal\b|\bbetter, orange", markup)


def test_texts_of_records_are_no_markup(text: str) -> None:
    assert HOSTILE not in text
    assert text.count("</script>") == 3
    embedded_text = text.split('id="data">')[1].split("</script>")[0]
    assert any(name == HOSTILE for name in strings(json.loads(embedded_text)))


@pytest.mark.parametrize("hostile", ["</script>", "<!--<script>", "]]>", "\u2028", "升级之路"])
def test_embedded_json_is_ascii_without_markup(hostile: str) -> None:
    said = embedded({"name": hostile})
    assert said.isascii()
    assert "<" not in said
    assert json.loads(said)["data"] == {"name": hostile}


def test_the_chart_library_ends_no_element() -> None:
    assert "</script" not in chart_library().lower()
    assert "\r" not in chart_library()


def test_the_same_runs_give_the_same_page(text: str) -> None:
    """In whatever order campaigns and runs come."""
    turned = {name: runs[::-1] for name, runs in reversed(make_campaigns().items())}
    assert page(turned).decode() == text


def test_numbers_are_a_little_finer_than_tables_spell() -> None:
    data = {"loss": [4.869252249598503, (0.1, 3)], "text": "4.869252249598503"}
    said = '{"loss":[4.869252,[0.1,3]],"text":"4.869252249598503"}'
    assert embedded(data) == f'{{"data":{said},"shared":[]}}'


def test_a_page_that_is_too_large_is_refused() -> None:
    with refused("report.html would have 3,", "at most 3,000,000 are allowed"):
        assemble({"texts": "x" * 2_900_000})


def test_assets_are_of_the_package() -> None:
    """A wheel holds them; each is short enough to read."""
    there = {each.name: each for each in files("rope_exp.report").joinpath("assets").iterdir()}
    assert there.keys() == {"page.html", "page.css", *SCRIPTS}
    for name, asset in there.items():
        assert len(asset.read_text(encoding="utf-8").splitlines()) <= 300, name
    pyproject = (REPOSITORY / "pyproject.toml").read_text(encoding="utf-8")
    assert '"rope_exp.report" = ["assets/*"]' in pyproject


def test_all_campaigns_make_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One campaign alone does not: the page would lack the others."""
    monkeypatch.setattr(page_module, "chart_library", str)
    # Tables and figures have tests of their own.
    monkeypatch.setattr(command, "_table_files", lambda report: {})
    records = tmp_path / "records"
    out = tmp_path / "out"
    make_records(records, "mini", rows=("qk_rope", "nope"), seeds=(0, 1))
    make_records(records, "other", rows=("vo_rope",), seeds=(0,))
    assert write_campaigns(records, "mini", out) == []

    made = write_campaigns(records, None, out)
    assert made == [str(out / "cost.md"), str(out / "report.html")]
    assert "mini/qk_rope-s0" in (out / "report.html").read_text(encoding="utf-8")


def test_a_page_of_the_pilot_alone_or_of_few_runs_is_made() -> None:
    assert b'"levels":[]' in page({"noise": make_pilot()})
    assert b'"reference":"nope"' in page({"one": make_runs("one", ["nope"], [0])})
