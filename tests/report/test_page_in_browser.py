"""Tests of the page in Chromium: it loads without requests, draws, sorts, and fits its window."""

import json
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from support.browser import Browser, find_chromium
from support.pages import HOSTILE, make_hostile, make_runs, make_tables

from rope_exp.report.content import Report, build
from rope_exp.report.page import page

FIRST = "#nine"
SHORT = "tokens/train.num_steps=1000"
WIDTHS = (360, 1360)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    command = find_chromium()
    if command is None:
        pytest.skip("there is no Chromium here; Debian's is `apt-get install chromium`")
    with Browser(command, tmp_path_factory.mktemp("profile")) as found:
        found.look(1360)
        yield found


@pytest.fixture(scope="module")
def tables() -> dict[str, Report]:
    return make_tables()


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory, tables: dict[str, Report]) -> Path:
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_bytes(page(tables, []))
    return path


@pytest.fixture
def opened(browser: Browser, path: Path) -> Iterator[Browser]:
    """Yield a browser with the page open, and then check for complaints and further requests."""
    browser.open(path)
    yield browser
    assert browser.complaints == []
    assert browser.requests == [path.as_uri()]


def section(place: str) -> str:
    """Return a selector for a setting, whose id may hold characters that `#id` does not allow."""
    return f"section[id={json.dumps(place)}]"


def shown(browser: Browser) -> list[str]:
    """Return the ids of the visible settings."""
    script = "[...document.querySelectorAll('.setting')].filter((s) => !s.hidden).map((s) => s.id)"
    return list(browser.evaluate(script))


def column(browser: Browser, table: str, number: int) -> list[str]:
    """Return the texts of a column, counted from 1."""
    cells = f"{table} tbody tr > :nth-child({number})"
    script = f"[...document.querySelectorAll({json.dumps(cells)})].map((c) => c.textContent)"
    return list(browser.evaluate(script))


# -- settings --------------------------------------------------------------------------------------


def test_it_loads_alone_and_shows_the_first_setting(
    opened: Browser, tables: dict[str, Report]
) -> None:
    """Three figures are drawn, the first of which names every row, as the table does."""
    assert shown(opened) == ["nine"]
    assert opened.count(f"{FIRST} figure svg") == 3
    assert opened.count(f"{FIRST} figure script") == 0
    names = column(opened, f"{FIRST} table", 1)[:9]
    assert names == [row.name for row in tables["nine"].rows.values()]
    drawn = str(opened.evaluate(f"document.querySelector('{FIRST} figure svg').textContent"))
    for name in names:
        assert name == "QK-RoPE" or name in drawn


def test_the_menu_draws_every_setting(opened: Browser, tables: dict[str, Report]) -> None:
    """Figures are drawn once, when their setting is first shown."""
    assert opened.count("figure svg") == 3
    for place, report in tables.items():
        opened.choose("setting", place)
        assert shown(opened) == [place]
        assert opened.evaluate("location.hash") == f"#{place}"
        assert opened.count(f"{section(place)} figure svg") == 3
        assert len(column(opened, f"{section(place)} table", 1)) >= len(report.rows)
    assert opened.count("figure svg") == 9
    opened.choose("setting", "nine")
    assert opened.count("figure svg") == 9


def test_the_address_remembers_the_setting(opened: Browser, path: Path) -> None:
    opened.choose("setting", SHORT)
    opened.act("history.back()")
    assert shown(opened) == ["nine"]
    opened.open(path, f"#{SHORT}")
    assert shown(opened) == [SHORT]
    assert opened.evaluate("document.getElementById('choose-setting').value") == SHORT


@pytest.mark.parametrize("address", ["#nothing", "#__proto__", "#%ZZ", "#h-answer"])
def test_an_address_of_no_setting_shows_the_first(
    opened: Browser, path: Path, address: str
) -> None:
    opened.open(path, address)
    assert shown(opened) == ["nine"]


def test_the_glance_leads_to_a_setting(opened: Browser) -> None:
    opened.act(f"document.querySelector('#glance a[href=\"#{SHORT}\"]').click()")
    assert shown(opened) == [SHORT]
    top = f"document.getElementById('{SHORT}').getBoundingClientRect().top"
    opened.wait(f"Math.abs({top}) < 200")


# -- tables ----------------------------------------------------------------------------------------


def test_a_heading_sorts_its_table(opened: Browser, tables: dict[str, Report]) -> None:
    """Numbers sort in either direction, `aria-sort` gives it, and missing values come last."""
    rows = list(tables["nine"].rows.values())
    table = f"{FIRST} .scroll:not(.chart) table"
    sort = f"document.querySelector('{table} th:nth-child(6) button').click()"
    assert opened.text(f"{table} th:nth-child(6)") == "Δ to QK-RoPE"

    opened.evaluate(sort)
    deltas = [float(text) for text in column(opened, table, 6)[: len(rows)]]
    assert deltas == sorted(deltas)
    assert opened.count(f"{table} [aria-sort=ascending]") == 1
    opened.evaluate(sort)
    deltas = [float(text) for text in column(opened, table, 6)[: len(rows)]]
    assert deltas == sorted(deltas, reverse=True)
    assert opened.count(f"{table} [aria-sort=descending]") == 1

    # The reference has no p, so it is last in both directions.
    for _ in range(2):
        opened.evaluate(sort.replace("nth-child(6)", "nth-child(8)"))
        assert column(opened, table, 1)[len(rows) - 1] == "QK-RoPE"
    assert opened.count(f"{table} [aria-sort]") == 1


def test_headings_are_buttons_for_the_keyboard(opened: Browser) -> None:
    opened.evaluate(f"document.querySelector('{FIRST} th button').focus()")
    for kind in ("keyDown", "keyUp"):
        opened.call("Input.dispatchKeyEvent", type=kind, key="Enter", code="Enter", text="\r")
    names = column(opened, f"{FIRST} table", 1)[:9]
    assert names == sorted(names)


# -- figures ---------------------------------------------------------------------------------------


def test_the_pointer_shows_what_a_mark_says(opened: Browser, tables: dict[str, Report]) -> None:
    """A row of the forest has a tooltip, which must work without inline styles."""
    texts = f"[...document.querySelectorAll('{FIRST} figure svg .mark-text text')]"
    place = f"{texts}.find(text => text.textContent.includes(' ['))"
    opened.evaluate(f"{place}.scrollIntoView({{block: 'center'}})")
    box = json.loads(opened.evaluate(f"JSON.stringify({place}.getBoundingClientRect())"))
    middle = {"x": box["x"] + box["width"] / 2, "y": box["y"] + box["height"] / 2}
    opened.call("Input.dispatchMouseEvent", type="mouseMoved", **middle)
    opened.wait("!document.getElementById('tooltip').hidden")
    said = opened.text("#tooltip")
    assert any(row.name in said for row in tables["nine"].rows.values())


# -- hostile content -------------------------------------------------------------------------------


def test_names_are_text_wherever_they_stand(browser: Browser, tmp_path: Path) -> None:
    """The names of a row, a corpus and runs are markup, and none of it becomes an element."""
    path = tmp_path / "hostile.html"
    path.write_bytes(page(make_hostile(), []))
    browser.open(path)
    assert browser.evaluate("document.title") == "Where in attention should a rotation go?"
    assert browser.count("img") == 0
    assert HOSTILE in column(browser, f"{FIRST} table", 1)
    # Long labels of an axis are truncated.
    assert HOSTILE[:16] in browser.text(f"{FIRST} figure svg")
    assert HOSTILE in browser.text(f"{FIRST} .runs")
    assert HOSTILE in browser.text(f"{FIRST} .small")
    assert HOSTILE in browser.evaluate("document.querySelector('optgroup').label")
    assert browser.complaints == []


def test_the_policy_stops_what_a_script_would_send(browser: Browser, path: Path) -> None:
    """Even an injected script can reach no server, and can run no text as code."""
    browser.open(path)
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        address = f"http://127.0.0.1:{server.getsockname()[1]}/"
        script = """(async (address) => {
            const stopped = new Set();
            const note = (event) => stopped.add(event.effectiveDirective);
            addEventListener('securitypolicyviolation', note);
            await fetch(address).catch(() => null);
            new Image().src = address;
            const script = document.createElement('script');
            script.textContent = 'document.title = "taken"';
            document.body.append(script);
            try { setTimeout('document.title = "taken"'); } catch { /* as it should be */ }
            document.body.insertAdjacentHTML('beforeend', '<p style="color: red">');
            await new Promise((done) => setTimeout(done, 200));
            return [...stopped].sort();
        })"""
        expected = ["connect-src", "img-src", "script-src", "script-src-elem", "style-src-attr"]
        assert browser.evaluate(f"{script}('{address}')") == expected
        with pytest.raises(BlockingIOError):
            server.accept()
    assert browser.text("title") != "taken"


# -- layout ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", WIDTHS)
def test_the_page_fits_its_window(browser: Browser, path: Path, width: int) -> None:
    """Tables and figures scroll in their own boxes, which end within the window."""
    try:
        browser.look(width)
        browser.open(path)
        browser.evaluate("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
        assert browser.evaluate("document.documentElement.scrollWidth") <= width
        outside = (
            "[...document.querySelectorAll('.setting:not([hidden]) *, #glance *, header *')]"
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


def test_a_page_without_settings_says_so(browser: Browser, tmp_path: Path) -> None:
    path = tmp_path / "empty.html"
    path.write_bytes(page({}, []))
    browser.open(path)
    assert "No campaign has records" in browser.text(".empty")
    assert browser.count("select, table") == 0
    assert browser.complaints == []


def test_what_diverged_or_is_unfinished_is_said(browser: Browser, tmp_path: Path) -> None:
    """The figures mark diverged runs too, and a row without a loss breaks none of them."""
    runs = make_runs("nine", ("qk_rope", "qkvo_rope", "nope", "v_rope"), (0, 1, 2))
    lost = {"status": "diverged", "val/loss": None}
    runs[5] = replace(runs[5], result={**runs[5].result, **lost})
    runs[9:] = [replace(run, result={}, metrics=[]) for run in runs[9:]]
    path = tmp_path / "lost.html"
    path.write_bytes(page({"nine": build(runs, ["pe"])}, runs))
    browser.open(path)
    assert "(1 diverged)" in browser.text(f"{FIRST} table")
    assert "(1 diverged)" in browser.text(f"{FIRST} figure svg")
    assert "unfinished" in browser.text(f"{FIRST} table")
    assert browser.count(f"{FIRST} figure svg") == 3
    assert browser.complaints == []
