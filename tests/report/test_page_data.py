"""What the page embeds: levels, every judgement as the tables have it, and curves."""

from dataclasses import replace
from typing import Any

import pytest
from support.pages import make_campaigns, make_run, make_runs, rotation

from rope_exp.report.content import build, refer
from rope_exp.report.levels import find_levels
from rope_exp.report.looks import look
from rope_exp.report.page_data import EXPLORATION, page_data
from rope_exp.report.page_marks import dashes, filled, outline

FEW = ("qk_rope", "vo_rope", "nope")


@pytest.fixture(scope="module")
def data() -> dict[str, Any]:
    return page_data(make_campaigns())


def campaigns_of(levels: list[Any]) -> list[str]:
    return [level.facets["campaign"].text for level in levels]


# -- levels ----------------------------------------------------------------------------------------


def test_levels_are_a_campaigns_choices(data: dict[str, Any]) -> None:
    facets = {facet["key"]: facet["values"] for facet in data["facets"]}
    assert facets == {
        "campaign": ["nine", "tokens"],
        "corpus": ["text"],
        "size": ["nano: 4 layers of 128"],
        "tokens": ["2,048,000 tokens", "4,096,000 tokens", "8,192,000 tokens"],
        "length": ["256 tokens"],
        "attention": ["softmax"],
    }
    assert len(data["levels"]) == 3
    assert data["levels"][data["start"]]["facets"]["campaign"] == "nine"


def test_the_page_opens_on_the_largest_campaign() -> None:
    """And not on a joined level, which is larger."""
    data = page_data({"a": make_runs("a", FEW), "b": make_runs("b", FEW, range(9))})
    assert data["levels"][data["start"]]["facets"]["campaign"] == "b"


def test_a_factor_that_no_facet_tells_is_a_facet() -> None:
    """Learning rates, also where a second campaign keeps its own fixed."""
    rates = []
    for run in make_runs("lr", FEW, (0,)):
        for lr in (0.0015, 0.012):
            config = run.config.replace("optim", lr=lr)
            factors = {"seed": 0, "optim.lr": lr}
            rates.append(replace(run, config=config, factors=factors))
    levels = find_levels({"lr": rates, "base": make_runs("base", FEW)})
    told = [level.facets["optim.lr"].text for level in levels]
    assert told == ["0.003", "0.0015", "0.012"]
    assert campaigns_of(levels) == ["base", "lr", "lr"]


def test_runs_on_hidden_tokens_join_no_causal_ones() -> None:
    """Of one corpus, size, budget and length, and yet no rows of one table."""
    masked = [
        replace(run, config=run.config.replace("train", objective="mlm"))
        for run in make_runs("mlm", FEW)
    ]
    levels = find_levels({"english": make_runs("english", FEW), "mlm": masked})
    assert campaigns_of(levels) == ["english", "mlm"]


def test_a_level_in_stages_names_their_lengths() -> None:
    staged = [
        replace(run, config=run.config.replace("train", stages=[[1024, 400], [128, 100]]))
        for run in make_runs("staged", FEW)
    ]
    [level] = find_levels({"staged": staged})
    assert level.facets["length"].text == "128, 1,024 tokens"


def test_campaigns_of_one_level_are_joined() -> None:
    """Rows that another campaign holds stand in one table, after the campaigns' own."""
    others = ("qv_rope", "kv_rope")
    levels = find_levels({"nine": make_runs("nine", FEW), "more": more_runs(others)})
    assert campaigns_of(levels) == ["more", "nine", "more + nine"]
    assert set(levels[2].report.rows) == {*FEW, *others}
    assert levels[0].report.reference.label == "kv_rope"


def more_runs(rows: tuple[str, ...]) -> list[Any]:
    return [
        make_run("more", rotation(row), seed, 4.0 + 0.01 * place + 0.001 * seed)
        for place, row in enumerate(reversed(rows))
        for seed in (0, 1)
    ]


def test_what_may_not_be_compared_is_not_joined() -> None:
    """And where one campaign holds all that the other does, there is nothing to join."""
    nine = make_runs("nine", FEW)
    assert len(find_levels({"nine": nine, "same": make_runs("same", FEW[:2])})) == 2

    other = [
        replace(run, result={**run.result, "data_sha256": "0" * 64})
        for run in more_runs(("qv_rope",))
    ]
    assert len(find_levels({"nine": nine, "more": other})) == 2

    # The protocol has one torch in a block.
    moved = [replace(run, env={**run.env, "torch": "9.0"}) for run in more_runs(("qv_rope",))]
    assert len(find_levels({"nine": nine, "more": moved})) == 2


# -- judgements ------------------------------------------------------------------------------------


def test_another_reference_is_judged_as_by_build() -> None:
    runs = make_runs("nine")
    report = build(runs, ["pe"])
    for label in report.rows:
        assert refer(report, label) == build(runs, ["pe"], label)


def test_numbers_are_those_of_the_tables(data: dict[str, Any]) -> None:
    level = data["levels"][data["start"]]
    report = build(make_runs("nine"), ["pe"], "nope")
    losses = {row["label"]: row["loss"] for row in level["rows"]}
    for label, judged in report.against.items():
        # A browser rounds once, as a table does.
        assert losses[label] == report.rows[label].ours.loss_mean
        row = level["against"]["nope"]["rows"][label]
        expected = [judged.delta, judged.low, judged.high, judged.wide_low, judged.wide_high]
        shown = [row[key] for key in ("delta", "low", "high", "wide_low", "wide_high")]
        assert shown == expected
    assert level["against"]["nope"]["rows"]["qk_rope"]["word"] == "better"
    assert level["against"]["nope"]["rows"]["qk_rope"]["published"] == pytest.approx(-0.083)


def test_other_views_than_the_protocols_are_exploration(data: dict[str, Any]) -> None:
    """Another reference, and levels that several campaigns make up; not the planned one."""

    def notes_of(level: dict[str, Any], reference: str) -> list[str]:
        return list(level["against"][reference]["notes"])

    level = data["levels"][data["start"]]
    assert EXPLORATION not in notes_of(level, "qk_rope")
    assert EXPLORATION in notes_of(level, "nope")
    joined = page_data({"nine": make_runs("nine", FEW), "more": more_runs(("qv_rope",))})
    more, nine, both = joined["levels"]
    assert EXPLORATION in notes_of(more, "qv_rope")
    assert EXPLORATION not in notes_of(nine, "qk_rope")
    assert EXPLORATION in notes_of(both, "qk_rope")


def test_one_seed_has_no_interval(data: dict[str, Any]) -> None:
    level = data["levels"][-1]
    row = level["against"]["qk_rope"]["rows"]["nope"]
    assert row.keys() == {"delta", "published"}


def test_curves_are_means_over_seeds(data: dict[str, Any]) -> None:
    level = data["levels"][data["start"]]
    drawn = level["curves"]["rows"]["vo_rope"]
    assert len(level["curves"]["tokens"]) == 10
    assert level["curves"]["tokens"][-1] == 2_048_000
    ends = [one["loss"][-1] for one in drawn["seeds"]]
    assert drawn["mean"][-1] == pytest.approx(sum(ends) / 3, abs=1e-5)
    delta = level["against"]["qk_rope"]["rows"]["vo_rope"]["delta"]
    ended = level["against"]["qk_rope"]["differences"]["vo_rope"][-1]
    assert ended == pytest.approx(delta, abs=1e-5)


def test_a_diverged_run_is_in_no_mean() -> None:
    runs = make_runs("nine", FEW)
    last = {**runs[-1].result, "status": "diverged", "val/loss": None}
    runs[-1] = replace(runs[-1], result=last, metrics=runs[-1].metrics[:4])
    level = page_data({"nine": runs})["levels"][0]
    assert [row["mark"] for row in level["rows"]] == ["", "", "(1 diverged)"]
    drawn = level["curves"]["rows"]["nope"]
    assert [one["status"] for one in drawn["seeds"]] == ["finished", "finished", "diverged"]
    assert drawn["seeds"][2]["loss"][4:] == [None] * 6
    assert None not in drawn["mean"]


def test_a_look_is_that_of_the_figures() -> None:
    """Half-filled markers have half a path; a hollow one has none; a dash in widths is known."""
    for label in [*FEW, "q_rope", "k_rope", "kv_rope", "own"]:
        style = look(label)
        assert outline(style).endswith("Z")
        is_half = style["fillstyle"] != "full"
        assert (filled(style) not in (outline(style), "M0,0Z")) == is_half
    assert filled(look("nope")) == "M0,0Z"
    assert dashes(look("qk_rope")) == []
    assert dashes(look("own")) == [12.0, 2.4, 2.4, 2.4, 2.4, 2.4]


# -- tables ----------------------------------------------------------------------------------------


def test_cells_sort_by_numbers(data: dict[str, Any]) -> None:
    table = data["levels"][data["start"]]["against"]["qk_rope"]["table"]
    titles = [column["title"] for column in table["columns"]]
    nope = next(row for row in table["rows"] if row["id"] == "nope")
    interval = nope["cells"][titles.index("95 % interval")]
    assert interval[0].startswith("+0.3")
    assert isinstance(interval[1], float)
    assert isinstance(nope["cells"][titles.index("p (Holm)")][1], float)


def test_every_run_is_listed_with_its_hashes(data: dict[str, Any]) -> None:
    every = [run for runs in make_campaigns().values() for run in runs]
    assert len(data["runs"]["rows"]) == len(every)
    assert data["hours"] == pytest.approx(90 * len(every) / 3600, abs=0.01)
    shown = {row["id"]: row["cells"] for row in data["runs"]["rows"]}
    for run in every:
        for key in ("config_sha256", "group_sha256", "data_sha256", "init_sha256", "order_sha256"):
            assert run.result[key] in shown[run.where]
