"""The slope chart: ranks, ties, and every pair that the tests do not separate."""

import itertools
from pathlib import Path

import pytest
from support.figures import artists, line, texts
from support.reports import make_nine, make_run, report_of

from rope_exp.report.content import Report
from rope_exp.report.paper.ranks import ranks

JOINED = "joined "


def joined_pairs(report: Report) -> set[frozenset[str]]:
    """Return the pairs that bars and arcs on our side join."""
    figure = ranks(report)
    assert figure is not None
    found = set()
    for gid in artists(figure):
        if gid.startswith(JOINED) and line(figure, gid)[0][0] > 1:
            pairs = itertools.combinations(gid.removeprefix(JOINED).split(), 2)
            found |= {frozenset(pair) for pair in pairs}
    return found


def unseparated(report: Report) -> set[frozenset[str]]:
    open_ones = {
        frozenset(pair) for pair, judged in report.pairs.items() if judged.sign in ("≈", "?")
    }
    known = {label for label, row in report.rows.items() if row.theirs.loss_mean is not None}
    return {pair for pair in open_ones if pair <= known}


@pytest.mark.parametrize("noisy", ["", "nope", "vo_rope"])
def test_exactly_the_pairs_that_are_not_separated_are_joined(tmp_path: Path, noisy: str) -> None:
    """With one row far noisier, it is joined to rows from which its neighbours are separated."""
    losses = {"qk_rope": 3.5, "k_rope": 3.502, "vo_rope": 3.6, "nope": 3.8, "qv_rope": 3.801}
    for place, (label, loss) in enumerate(losses.items()):
        pe = "pe.rotate=[q,v]" if label == "qv_rope" else label
        for seed in range(3):
            noise = (0.4 if label == noisy else 0.001) * ((seed * (place + 2)) % 3 - 1)
            make_run(tmp_path, pe=pe, seed=seed, loss=loss + noise)
    report = report_of(tmp_path)
    assert joined_pairs(report) == unseparated(report) != set()


def test_ties_share_a_rank_and_no_line_of_text(tmp_path: Path) -> None:
    for pe, loss in {"qk_rope": 3.5, "k_rope": 3.6, "vo_rope": 3.6, "nope": 3.7}.items():
        make_run(tmp_path, pe=pe, loss=loss)
    figure = ranks(report_of(tmp_path))
    assert figure is not None
    ends = {label: line(figure, f"{label} rank")[1] for label in ("k_rope", "vo_rope", "nope")}
    assert ends == {"k_rope": [2, 2], "vo_rope": [3, 2], "nope": [4, 4]}
    assert {"=2 K-RoPE 3.6000", "=2 VO-RoPE 3.6000", "4 NoPE 3.7000"} <= set(texts(figure))


def test_the_source_joins_what_it_calls_equal(tmp_path: Path) -> None:
    make_nine(tmp_path)
    figure = ranks(report_of(tmp_path))
    assert figure is not None
    joined = {gid for gid in artists(figure) if gid.startswith(JOINED)}
    assert joined == {
        "joined qk_rope qkvo_rope",
        "joined k_rope vo_rope",
        "joined o_rope q_rope v_rope",
    }
    assert any("no two seeds, so nothing is tested" in said for said in texts(figure))


def test_one_published_row_is_no_order(tmp_path: Path) -> None:
    make_run(tmp_path)
    make_run(tmp_path, pe="pe.rotate=[q,v]")
    assert ranks(report_of(tmp_path)) is None


def test_a_pair_that_nothing_tested_is_joined(tmp_path: Path) -> None:
    """NoPE has one seed, so that its distance, however large, is not told."""
    for pe, loss, seeds in (("qk_rope", 3.5, 3), ("vo_rope", 3.7, 3), ("nope", 3.9, 1)):
        for seed in range(seeds):
            make_run(tmp_path, pe=pe, seed=seed, loss=loss + 0.01 * seed)
    report = report_of(tmp_path)
    assert report.pairs.keys() == {("qk_rope", "vo_rope")}
    assert joined_pairs(report) == {
        frozenset(("qk_rope", "nope")),
        frozenset(("vo_rope", "nope")),
    }
