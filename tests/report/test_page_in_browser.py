"""Tests of the page in Chromium: it loads without requests, opens settings, and fits its window."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.browser import Browser, find_chromium
from support.pages import HOSTILE, make_hostile, make_tables

from rope_exp.report.page import page

FIRST = "#english"
SHORT = "tokens/train.num_steps=1000"
WIDTHS = (390, 1360)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    command = find_chromium()
    if command is None:
        pytest.skip("there is no Chromium here; Debian's is `apt-get install chromium`")
    with Browser(command, tmp_path_factory.mktemp("profile")) as found:
        found.look(1360)
        yield found


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_bytes(page(make_tables(), []))
    return path


def shown(browser: Browser) -> list[str]:
    """Return the ids of the visible settings."""
    script = "[...document.querySelectorAll('.setting')].filter((s) => s.checkVisibility())"
    return list(browser.evaluate(f"{script}.map((s) => s.id)"))


def images(browser: Browser, selector: str) -> list[bool]:
    """Return whether each figure has been drawn."""
    script = f"[...document.querySelectorAll({json.dumps(selector + ' figure img')})]"
    return list(browser.evaluate(f"{script}.map((i) => i.complete && i.naturalWidth > 0)"))


def test_it_loads_alone_and_shows_the_first_setting(browser: Browser, path: Path) -> None:
    browser.open(path)
    assert shown(browser) == ["english"]
    assert images(browser, FIRST) == [True] * 3
    assert browser.complaints == []
    assert [each for each in browser.requests if not each.startswith("data:")] == [path.as_uri()]


def test_the_glance_opens_a_setting(browser: Browser, path: Path) -> None:
    browser.open(path)
    browser.evaluate(f"document.querySelector('#glance a[href=\"#{SHORT}\"]').click()")
    top = f"document.getElementById('{SHORT}').getBoundingClientRect().top"
    browser.wait(f"Math.abs({top}) < 200")
    assert shown(browser) == ["english", SHORT]


def test_names_are_text_wherever_they_stand(browser: Browser, tmp_path: Path) -> None:
    """The names of a row, a corpus and runs are markup, and none of it becomes an element."""
    path = tmp_path / "hostile.html"
    path.write_bytes(page(make_hostile(), []))
    browser.open(path)
    assert browser.evaluate("document.title") == "Where in attention should a rotation go?"
    assert images(browser, "") == [True] * 3
    for selector in ("table", ".runs", ".small"):
        assert HOSTILE in browser.text(f"{FIRST} {selector}")
    assert browser.complaints == []


@pytest.mark.parametrize("width", WIDTHS)
def test_the_page_fits_its_window(browser: Browser, path: Path, width: int) -> None:
    """Tables and figures scroll in their own boxes, which end within the window."""
    try:
        browser.look(width)
        browser.open(path)
        browser.evaluate("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
        assert browser.evaluate("document.documentElement.scrollWidth") <= width
        outside = (
            "[...document.querySelectorAll('.setting *, #glance *, header *')]"
            ".filter((e) => !e.closest('.scroll table, svg, .chart > *'))"
            f".filter((e) => e.getBoundingClientRect().right > {width}).map((e) => e.outerHTML)"
        )
        assert browser.evaluate(outside) == []
        hidden = (
            "[...document.querySelectorAll('.scroll')]"
            ".filter((e) => getComputedStyle(e).overflowX !== 'auto').length"
        )
        assert browser.evaluate(hidden) == 0
        assert browser.complaints == []
    finally:
        browser.look(1360)
