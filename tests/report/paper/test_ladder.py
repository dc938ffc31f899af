"""Ladders: whose runs stand on them, and what is drawn of them."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from support.figures import artists, line, overlapping, texts
from support.reports import TOKENS_PER_STEP, all_runs, make_run

from rope_exp.evidence.published import TABLE
from rope_exp.evidence.runs import Run
from rope_exp.report.content import build
from rope_exp.report.paper.along import by_level, companions, ladders
from rope_exp.report.paper.ladder import ladder
from rope_exp.report.paper.rates import rates

STEPS = "train.num_steps"
SHORT = "schedule.warmup_fraction=0.05"
# Losses of two groups, by steps and row; VO is ahead at first.
LOSSES_AT: Mapping[int, Mapping[str, float]] = {
    500: {"qk_rope": 4.0, "vo_rope": 3.9, "nope": 4.3},
    1000: {"qk_rope": 3.6, "vo_rope": 3.8, "nope": 3.9},
    2000: {"qk_rope": 3.3, "vo_rope": 3.6},
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    folder = tmp_path_factory.mktemp("runs")
    for steps, losses in LOSSES_AT.items():
        for pe, loss in losses.items():
            for seed in (0, 1) if steps == 500 else (0,):
                noise = 0.001 * seed * (pe == "vo_rope")
                make_run(
                    folder,
                    pe=pe,
                    seed=seed,
                    loss=loss + 0.02 * seed + noise,
                    group=f"steps{steps}",
                    overrides=[f"{STEPS}={steps}", SHORT],
                )
    return all_runs(folder)


@pytest.fixture(scope="module")
def figure(runs: list[Run]) -> Figure:
    drawn = ladder(runs, STEPS)
    assert drawn is not None
    return drawn


def test_nothing_published_stands_beside_hidden_tokens(tmp_path: Path) -> None:
    """Neither its column nor its words: the published losses are of the next token."""
    for steps, losses in LOSSES_AT.items():
        for pe, loss in losses.items():
            overrides = [f"{STEPS}={steps}", "train.objective=mlm"]
            make_run(tmp_path, pe=pe, loss=loss, group=f"steps{steps}", overrides=overrides)
    drawn = ladder(all_runs(tmp_path), STEPS)
    assert drawn is not None
    assert not [gid for gid in artists(drawn) if gid.endswith("published")]
    assert not [said for said in texts(drawn) if "ublished" in said]


def test_a_level_with_another_reference_is_left_out(runs: list[Run], tmp_path: Path) -> None:
    """Differences to QK at another base are no points of a line of differences to QK."""
    for words in ("pe.base=100", "pe.rotate=[v,o]"):
        overrides = [f"{STEPS}=4000", SHORT, words]
        make_run(tmp_path, loss=3.2, group="steps4000", overrides=overrides)
    drawn = ladder([*runs, *all_runs(tmp_path)], STEPS)
    assert drawn is not None
    places, _ = line(drawn, "vo_rope delta")
    assert max(places) == 2000 * TOKENS_PER_STEP


def test_lines_are_the_differences_of_each_level(runs: list[Run], figure: Figure) -> None:
    reports = {steps: build(found, ["pe"]) for steps, found in by_level(runs, STEPS).items()}
    for label in ("vo_rope", "nope"):
        expected = {
            steps * TOKENS_PER_STEP: report.rows[label].ours.delta
            for steps, report in reports.items()
            if label in report.rows
        }
        assert line(figure, f"{label} delta") == (list(expected), list(expected.values()))
    assert "qk_rope delta" not in artists(figure)


def test_a_crossing_is_marked_and_said(figure: Figure) -> None:
    """From -0.0995 to 0.2, straight on the log axis."""
    x, y = line(figure, "vo_rope crosses")
    expected = 500 * TOKENS_PER_STEP * 2 ** (0.0995 / 0.2995)
    assert x == pytest.approx([expected], rel=1e-3)
    assert y == [0]
    assert any(
        "×: where the means cross (untested;" in said and "QK-RoPE and VO-RoPE at 2.58M" in said
        for said in texts(figure)
    )
    assert "nope crosses" not in artists(figure)


def test_a_line_that_crosses_twice_is_named_once(tmp_path: Path) -> None:
    for steps, vo_loss in ((500, 3.9), (1000, 4.1), (2000, 3.9)):
        for pe, loss in (("qk_rope", 4.0), ("vo_rope", vo_loss)):
            make_run(tmp_path, pe=pe, loss=loss, group=f"of{steps}", overrides=[f"{STEPS}={steps}"])
    drawn = ladder(all_runs(tmp_path), STEPS)
    assert drawn is not None
    # Half-way on the log axis, both times.
    assert any("QK-RoPE and VO-RoPE at 2.9M and 5.79M." in said for said in texts(drawn))


def test_the_published_stand_at_the_edge(figure: Figure) -> None:
    for label in ("vo_rope", "nope"):
        published = TABLE.losses[label] - TABLE.losses["qk_rope"]
        assert line(figure, f"{label} published")[1] == [published]
    assert {"VO-RoPE +0.058", "NoPE +0.083"} <= set(texts(figure))
    assert overlapping(figure, " name") == []


def test_a_line_that_ends_early_says_where(figure: Figure) -> None:
    assert "NoPE (at 4.1M)" in texts(figure)


def test_one_level_is_no_ladder(runs: list[Run]) -> None:
    assert ladder([run for run in runs if run.group == "steps500"], STEPS) is None


def test_levels_of_a_short_warmup_are_named(tmp_path: Path, figure: Figure) -> None:
    """Of 2,000 steps 100 warm up; of the fixture's 500 and 1,000 fewer do."""
    said = "Fewer than 100 updates of warmup, which rows bear unequally: 2.05M, 4.1M."
    assert any(said in text for text in texts(figure))

    for steps in (500, 1000):
        for pe in ("qk_rope", "vo_rope"):
            make_run(tmp_path, pe=pe, group=f"of{steps}", overrides=[f"{STEPS}={steps}", SHORT])
    all_short = ladder(all_runs(tmp_path), STEPS)
    assert all_short is not None
    assert not any("updates of warmup" in text for text in texts(all_short))


# -- whose runs ------------------------------------------------------------------------------------


def test_other_campaigns_lend_what_differs_in_the_factor_alone(runs: list[Run]) -> None:
    own = [run for run in runs if run.group != "steps500"]
    others = [run for run in runs if run.group == "steps500"]
    assert [len(found) for found in ladders(own, others, STEPS)] == [len(runs)]
    assert companions(runs, STEPS) == []


def test_others_lend_no_variant_and_no_run_of_their_own_cells(runs: list[Run]) -> None:
    own = [run for run in runs if run.config.pe.label != "nope"]
    (found,) = ladders(own, runs, STEPS)
    assert sorted(map(id, found)) == sorted(map(id, own))


def test_a_longer_window_brings_its_batch_at_equal_tokens(tmp_path: Path) -> None:
    for length, batch in ((256, 16), (64, 64), (1024, 16)):
        make_run(
            tmp_path,
            group=f"length{length}",
            overrides=[f"train.seq_len={length}", f"train.global_batch_size={batch}"],
        )
    (found,) = ladders(all_runs(tmp_path), [], "train.seq_len")
    assert sorted(run.group for run in found) == ["length256", "length64"]
    assert companions(found, "train.seq_len") == ["train.global_batch_size"]


# -- learning rates --------------------------------------------------------------------------------


def test_rates_draw_means_the_best_and_the_common(tmp_path: Path) -> None:
    """Over seed 0 alone, which all rates have; a diverged run is left out and said."""
    losses = {
        ("qk_rope", 0.001): [3.6],
        ("qk_rope", 0.003): [3.5, 3.9],
        ("qk_rope", 0.01): [3.7],
        ("vo_rope", 0.001): [3.55],
        ("vo_rope", 0.003): [3.65],
    }
    for (pe, rate), values in losses.items():
        for seed, loss in enumerate(values):
            words = {"group": f"lr{rate}", "overrides": [f"optim.lr={rate}"]}
            make_run(tmp_path, pe=pe, seed=seed, loss=loss, **words)
    lost = {"steps": 100}
    words = {"group": "lr0.01", "overrides": ["optim.lr=0.01"]}
    make_run(tmp_path, pe="vo_rope", loss=None, steps=100, result=lost, **words)

    figure = rates(all_runs(tmp_path))
    assert figure is not None
    x, y = line(figure, "qk_rope mean")
    np.testing.assert_allclose(x, [0.001, 0.003, 0.01])
    np.testing.assert_allclose(y, [3.6, 3.5, 3.7])
    assert line(figure, "vo_rope mean")[1] == [3.55, 3.65]
    assert line(figure, "vo_rope best") == ([0.001], [3.55])
    assert line(figure, "qk_rope best") == ([0.003], [3.5])
    assert line(figure, "common")[0] == [0.003, 0.003]
    assert any("1 diverged and is not shown" in said for said in texts(figure))
