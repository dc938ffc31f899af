"""The page in Chromium: it loads alone, shows what it holds, and its address remembers."""

import json
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.browser import Browser, find_chromium
from support.pages import HOSTILE, make_campaigns, make_pilot, make_run, make_runs, rotation

from rope_exp.config.variants import PeConfig
from rope_exp.evidence.runs import Run
from rope_exp.report.page import assemble, page
from rope_exp.report.page_data import page_data

Data = dict[str, Any]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    command = find_chromium()
    if command is None:
        pytest.skip("there is no Chromium here; Debian's is `apt-get install chromium`")
    with Browser(command, tmp_path_factory.mktemp("profile")) as found:
        found.look(1360)
        yield found


@pytest.fixture(scope="module")
def data() -> Data:
    return page_data(make_campaigns())


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory, data: Data) -> Path:
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_bytes(assemble(data))
    return path


@pytest.fixture
def opened(browser: Browser, path: Path) -> Iterator[Browser]:
    """The page at its beginning; whatever a test does, nothing may be complained of."""
    browser.open(path)
    yield browser
    assert browser.complaints == []
    assert browser.requests == [path.as_uri()]


def forest(browser: Browser) -> str:
    """What the forest says of each row."""
    script = "[...document.querySelectorAll('.ours_marks > *')].map((m) => m.ariaLabel).join('; ')"
    return str(browser.evaluate(script))


def names(browser: Browser, table: str) -> list[str]:
    """The first cell of each line of a table."""
    script = f"[...document.querySelectorAll('#{table} tbody th')].map((c) => c.textContent)"
    return list(browser.evaluate(script))


# -- what is shown ---------------------------------------------------------------------------------


def test_it_loads_alone_and_shows_what_it_holds(opened: Browser, data: Data) -> None:
    """Marks, cells and lines are as many as the data has rows, seeds and runs."""
    level = data["levels"][data["start"]]
    num_rows = len(level["rows"])
    assert num_rows == 9
    assert opened.count(".ours_marks > *") == num_rows
    assert opened.count(".interval_marks > *") == num_rows - 1
    assert opened.count(".wide_marks > *") == num_rows - 1
    assert opened.count(".theirs_marks > *") == num_rows
    assert opened.count("#grid td.subset") == num_rows
    assert opened.count("#grid td.missing") == 16 - num_rows
    assert opened.count("#losses .means_marks") == num_rows
    assert opened.count("#losses .seeds_marks") == 3 * num_rows
    assert opened.count("#differences .means_marks") == num_rows
    assert opened.count("#rows tbody tr") == num_rows
    assert opened.count("#relations tbody tr") == 8
    assert opened.text("#published").startswith("Su Jianlin")
    assert "10862" in opened.text("#source")
    assert opened.evaluate("document.getElementById('answers-section').hidden")
    assert opened.count("#runs tbody tr") == 3 * num_rows
    assert opened.count("#assumptions li") == len(level["assumptions"])


def test_controls_are_those_with_a_choice(opened: Browser) -> None:
    script = "[...document.querySelectorAll('#controls select')].map((s) => s.name)"
    assert opened.evaluate(script) == ["campaign", "tokens", "reference"]
    assert opened.count("#controls label select") == 3


def test_the_grid_shows_published_values_in_its_corners(opened: Browser) -> None:
    cell = opened.text("#grid tr:nth-child(2) td:nth-child(5)")
    assert cell.startswith("+0.058VO-RoPE+0.2")
    assert cell.endswith("worse")


# -- choices ---------------------------------------------------------------------------------------


def test_another_reference_changes_forest_and_address(opened: Browser) -> None:
    """And going back shows what was there before."""
    before = forest(opened)
    assert before.startswith("QK-RoPE, reference; QKVO-RoPE, +0.0")

    opened.choose("reference", "nope")
    assert "reference=nope" in opened.evaluate("location.hash")
    assert "QK-RoPE, −0.3" in forest(opened)
    assert "better" in forest(opened)
    assert opened.text("#h-forest") == "Differences to NoPE"

    opened.act("history.back()")
    assert forest(opened) == before


def test_the_address_restores_what_is_shown(opened: Browser, path: Path) -> None:
    opened.choose("tokens", "8,192,000 tokens")
    assert opened.text("#status") == "Campaign is now tokens."
    opened.choose("reference", "vo_rope")
    there = opened.evaluate("location.hash")
    seen = forest(opened)
    assert "not tested" in seen

    opened.open(path, there)
    assert forest(opened) == seen
    assert opened.evaluate("document.getElementById('choose-tokens').value") == "8,192,000 tokens"
    assert opened.count(".interval_marks > *") == 0


def test_an_address_of_nothing_shows_the_nearest(opened: Browser, path: Path) -> None:
    opened.open(path, "#campaign=nine&tokens=1&reference=__proto__&sort-rows=x&%ZZ")
    assert "the records do not hold" in opened.text("#status")
    assert opened.text("#h-forest") == "Differences to QK-RoPE"


def test_a_heading_sorts_its_table(opened: Browser) -> None:
    assert names(opened, "rows")[0] == "QK-RoPE"
    click = "document.querySelector('#rows th:nth-child(4) button').click()"
    opened.act(click)
    rising = names(opened, "rows")
    opened.act(click)
    assert names(opened, "rows") == rising[::-1]
    assert opened.count("#rows th[aria-sort=descending]") == 1
    assert "sort-rows=-4" in opened.evaluate("location.hash")


def test_every_run_can_be_listed(opened: Browser, data: Data) -> None:
    opened.act("document.getElementById('all').click()")
    assert opened.count("#runs tbody tr") == len(data["runs"]["rows"])


def test_the_pointer_and_the_slider_choose_tokens(opened: Browser) -> None:
    assert opened.text("#at-tokens") == "2,048,000 tokens"
    opened.evaluate("document.getElementById('at').value = 0")
    opened.evaluate("document.getElementById('at').dispatchEvent(new Event('input'))")
    assert opened.text("#at-tokens") == "204,800 tokens"

    place = "document.querySelector('#losses .root > g > .background').getBoundingClientRect()"
    opened.evaluate("document.getElementById('losses').scrollIntoView()")
    box = json.loads(opened.evaluate(f"JSON.stringify({place})"))
    middle = {"x": box["x"] + box["width"] / 2, "y": box["y"] + box["height"] / 2}
    opened.call("Input.dispatchMouseEvent", type="mouseMoved", **middle)
    opened.wait("document.getElementById('at-tokens').textContent === '1,024,000 tokens'")
    assert opened.count("#values tr") == 10


# -- harm ------------------------------------------------------------------------------------------


def test_names_are_text_wherever_they_stand(browser: Browser, tmp_path: Path) -> None:
    """A row, a corpus and a device whose names are markup; nothing of it becomes an element."""
    runs = []
    for seed in (0, 1):
        hostile = PeConfig(name=HOSTILE, rotate=("q", "v"))
        loss = 4.1 + 0.01 * seed
        more: Data = {"env": {"device": HOSTILE}, "corpus": HOSTILE}
        runs.append(make_run("nine", hostile, seed, loss, **more))
        runs.append(make_run("nine", rotation("qk_rope"), seed, loss - 0.1, **more))
    path = tmp_path / "hostile.html"
    path.write_bytes(page({"nine": runs}))

    browser.open(path)
    assert browser.evaluate("document.title") == "Where in attention should a rotation go?"
    assert browser.count("img") == 0
    assert HOSTILE in forest(browser)
    assert HOSTILE in names(browser, "rows")
    assert HOSTILE in browser.text("#runs")
    assert HOSTILE in browser.text("#caption")
    assert browser.complaints == []


def test_the_policy_stops_what_a_script_would_send(browser: Browser, path: Path) -> None:
    """Even a script that got into the page reaches no server."""
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
            document.body.insertAdjacentHTML('beforeend', '<p style="color: red">');
            await new Promise((done) => setTimeout(done, 200));
            return [...stopped].sort();
        })"""
        expected = ["connect-src", "img-src", "script-src-elem", "style-src-attr"]
        assert browser.evaluate(f"{script}('{address}')") == expected
        with pytest.raises(BlockingIOError):
            server.accept()
    assert browser.text("title") != "taken"


# -- looks -----------------------------------------------------------------------------------------


def test_narrow_and_dark_pages_fit(browser: Browser, path: Path) -> None:
    """Nothing is wider than a telephone; dark paper is dark, and its curves are lifted."""
    try:
        browser.look(400, dark=True)
        browser.open(path)
        assert browser.evaluate("document.documentElement.scrollWidth") <= 400
        paper = "getComputedStyle(document.body).backgroundColor"
        assert browser.evaluate(paper) == "rgb(21, 23, 27)"
        line = "getComputedStyle(document.querySelector('#losses .means_marks path')).stroke"
        assert "none" not in browser.evaluate(line)
        assert browser.complaints == []
    finally:
        browser.look(1360)


@pytest.mark.parametrize("pilot", [make_pilot(), []])
def test_a_page_without_rows_says_so(browser: Browser, tmp_path: Path, pilot: list[Run]) -> None:
    path = tmp_path / "empty.html"
    path.write_bytes(page({"noise": pilot}))
    browser.open(path)
    assert browser.evaluate("document.getElementById('of-level').hidden")
    assert not browser.evaluate("document.getElementById('nothing').hidden")
    browser.act("document.querySelector('#runs th:nth-child(5) button').click()")
    assert browser.count("#runs th[aria-sort=ascending]") == 1
    assert browser.count("#runs tbody tr") == len(pilot)
    assert browser.complaints == []


def test_a_row_says_what_diverged_and_what_would_settle_it(
    browser: Browser, tmp_path: Path
) -> None:
    """In the forest and the grid, also of the reference; and fits a telephone."""
    runs = make_runs("nine", ("qk_rope", "qkvo_rope", "nope"), (0, 1, 2))
    lost = {"status": "diverged", "val/loss": None}
    for place in (2, 5):
        runs[place] = replace(runs[place], result={**runs[place].result, **lost})
    data = page_data({"nine": runs})
    found = data["levels"][0]["against"]["qk_rope"]["rows"]["qkvo_rope"]
    found |= {"word": "open", "needed": 12}
    path = tmp_path / "lost.html"
    path.write_bytes(assemble(data))

    browser.open(path)
    assert "reference (1\u00a0diverged)" in forest(browser)
    assert "open (1\u00a0diverged), 12 seeds in all" in forest(browser)
    assert "12 seeds in all" in browser.text("#forest")
    assert "open (1\u00a0diverged)" in browser.text("#grid")
    try:
        browser.look(400)
        browser.open(path)
        assert browser.evaluate("document.documentElement.scrollWidth") <= 400
        # There is no room for more than the verdict, but in what is read aloud.
        assert "12 seeds in all" not in browser.text("#forest")
        assert "12 seeds in all" in forest(browser)
    finally:
        browser.look(1360)
    assert browser.complaints == []


def test_a_row_without_a_loss_is_no_mark(browser: Browser, tmp_path: Path) -> None:
    runs = make_runs("nine", ("qk_rope", "nope"), (0,))
    runs[1] = replace(runs[1], result={}, metrics=[])
    path = tmp_path / "few.html"
    path.write_bytes(page({"nine": runs}))
    browser.open(path)
    assert browser.count(".ours_marks > *") == 1
    assert "unfinished" in browser.text("#grid")
    assert browser.complaints == []
