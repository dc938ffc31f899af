"""Tests of the differences from QK-RoPE in all settings, against each setting's own table."""

import csv
import io
from collections.abc import Mapping
from dataclasses import replace

import pytest
from support.charts import domain, parts, records, words
from support.pages import make_run, make_runs, rotation

from rope_exp.evidence.runs import Run
from rope_exp.report.content import Report, build
from rope_exp.studies.settings import files, relations

Tables = Mapping[str, Report]
FEW = ("qk_rope", "qkvo_rope", "vo_rope", "nope")


def budget(steps: int, rows: tuple[str, ...] = FEW) -> list[Run]:
    """Return one seed of a campaign over budgets, with the differences of that seed in `nine`."""
    more = {"factors": {"train.num_steps": steps}, "num_steps": steps}
    return make_runs("tokens", rows, (0,), shift=-0.4, **more)


@pytest.fixture(scope="module")
def tables() -> dict[str, Report]:
    found = {
        "tokens/train.num_steps=1000": budget(1000),
        "nine": make_runs("nine"),
        "tokens/train.num_steps=2000": budget(2000),
        # This setting has no reference, so it is left out.
        "seven": make_runs("seven", ("vo_rope", "nope")),
    }
    return {place: build(runs, ["pe"]) for place, runs in found.items()}


def made_of(tables: Tables) -> dict[str, bytes]:
    """Return the files of settings, by their names there."""
    found = files([], {}, tables)
    return {name.removeprefix("settings/"): content for name, content in found.items()}


def lines_of(table: str) -> list[list[str]]:
    """Return the cells of the rows that begin with a link, in a Markdown text."""
    rows = [line for line in table.splitlines() if line.startswith("| [")]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


def test_the_numbers_are_those_of_the_tables(tables: Tables) -> None:
    """A star marks the verdicts better and worse; equivalent and open have none."""
    text = made_of(tables)["settings.md"].decode()
    head = next(line for line in text.splitlines() if line.startswith("| setting"))
    columns = [cell.strip() for cell in head.strip("|").split("|")]
    nine, *others = lines_of(text)

    assert nine[0] == "[nine](../nine/table.md)"
    for label, judged in tables["nine"].against.items():
        name = tables["nine"].rows[label].name.removesuffix("-RoPE")
        star = "*" if judged.verdict in ("better", "worse") else ""
        assert nine[columns.index(name)] == f"{judged.delta:+.3f}{star} (3)"
    assert sum("*" in cell for cell in nine) >= 6
    assert [other[0].split("]")[0] for other in others] == [
        "[tokens, num_steps=1000",
        "[tokens, num_steps=2000",
    ]
    assert others[0][columns.index("V")] == "—"
    assert others[0][columns.index("VO")].endswith(" (1)")


def test_the_csv_has_the_intervals(tables: Tables) -> None:
    content = made_of(tables)["settings.csv"].decode()
    rows = list(csv.DictReader(io.StringIO(content)))
    assert len(rows) == 8 + 3 + 3
    judged = tables["nine"].against["vo_rope"]
    [found] = [row for row in rows if (row["setting"], row["pe"]) == ("nine", "vo_rope")]
    shown = [float(found[key]) for key in ("delta", "delta_ci_low", "delta_ci_high", "p_holm")]
    expected = [judged.delta, judged.low, judged.high, judged.p_adjusted]
    assert shown == pytest.approx(expected, abs=1e-6)
    assert (found["verdict"], found["num_seeds"]) == ("worse", "3")
    [single] = [row for row in rows if row["setting"].endswith("2000") and row["pe"] == "nope"]
    assert (single["verdict"], single["delta_ci_low"], single["num_seeds"]) == ("untested", "", "1")


def test_the_figure_draws_what_was_judged(tables: Tables) -> None:
    """One seed has no interval; a difference outside the axis is an arrow at its edge."""
    far = [
        make_run("far", rotation("qk_rope"), 0, 3.5),
        make_run("far", rotation("qkvo_rope"), 0, 2.5),
    ]
    settings = {place: tables[place] for place in ("nine", "tokens/train.num_steps=1000")}
    chart = relations({**settings, "far": build(far, ["pe"])})
    assert chart is not None

    nine = {each.judged.b: each.judged for each in tables["nine"].alone.relations}
    first, second, third = records(chart, "relation")
    assert first["relation"] == "QK ≈ QKVO"
    own = nine["qkvo_rope"]
    assert [first[key] for key in ("delta", "low", "high")] == [own.delta, own.low, own.high]
    assert [first["is_tested"], second["is_tested"], third["is_tested"]] == [True, False, False]
    assert second["low"] is None
    assert second["delta"] == pytest.approx(-1)
    assert [first["shape"], second["shape"], third["shape"]] == [
        "circle",
        "triangle-left",
        "circle",
    ]


def test_every_published_relation_has_a_panel(tables: Tables) -> None:
    """Settings have plain names and are ordered by tokens."""
    chart = relations({place: tables[place] for place in tables if place != "seven"})
    assert chart is not None
    titles = [panel["title"]["text"] for panel in chart.to_dict()["concat"]]
    assert titles == [
        "QK ≈ QKVO",
        "QKVO > K",
        "K ≈ VO",
        "VO > QKV",
        "QKV > NoPE",
        "NoPE > O",
        "NoPE > Q",
        "NoPE > V",
    ]
    assert domain(chart, "setting") == [
        "text, 2M tokens, warmup 100",
        "text, 4.1M tokens, warmup 200",
        "text, 8.2M tokens, warmup 400",
    ]
    # The panels fill two lines, and the first panel of each shows the names.
    assert words(chart).count("text, 2M tokens, warmup 100") == 2
    assert {"low": -0.01, "high": 0.01} in list(parts(chart.to_dict()))


def test_hidden_tokens_are_in_the_table_and_not_in_the_figure() -> None:
    hidden = []
    for run in budget(1000):
        train = replace(run.config.train, objective="mlm")
        hidden.append(replace(run, config=replace(run.config, train=train)))
    tables = {"tokens": build(budget(2000), ["pe"]), "hidden": build(hidden, ["pe"])}
    made = made_of(tables)
    assert b"[tokens" in made["settings.md"]
    assert "hidden" in made["settings.csv"].decode()
    assert relations(tables) is None


def test_float32_is_in_the_table_and_not_in_the_figure(tables: Tables) -> None:
    exact = build(make_runs("exact", FEW, (0,), precision="fp32"), ["pe"])
    assert relations({"nine": tables["nine"], "exact": exact}) is None


def test_a_setting_that_was_run_again_is_left_out(tables: Tables) -> None:
    """It repeats one seed of a larger setting under another campaign's name."""
    again = build(make_runs("again", FEW, (0,)), ["pe"])
    content = made_of({**tables, "again": again})["settings.md"].decode()
    assert "[again" not in content
    assert content == made_of(tables)["settings.md"].decode()


def test_one_setting_is_no_comparison(tables: Tables) -> None:
    assert made_of({"nine": tables["nine"]}) == {}
    assert made_of({"nine": tables["nine"], "seven": tables["seven"]}) == {}
