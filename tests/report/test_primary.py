"""Tests that the published relations decide, and that further seeds are joined, on real records."""

import gzip
import json
from collections.abc import Mapping

import numpy as np
import pytest
from scipy import stats
from support.configs import RECORDED

from rope_exp.evidence.records import read_records
from rope_exp.evidence.runs import Run
from rope_exp.report.content import Report, build
from rope_exp.report.gather import all_seeds
from rope_exp.report.tables import frame, markdown_of_seeds


@pytest.fixture(scope="module")
def nine() -> Report:
    return build(read_records(RECORDED, "nine_26m"), ["pe"])


@pytest.fixture(scope="module")
def others() -> list[Run]:
    names = ("tokens", "rates_26m", "qk_rate_26m", "shift_26m")
    return [run for name in names for run in read_records(RECORDED, name)]


def losses(campaign: str, pe: str) -> Mapping[int, float]:
    """Return losses at 26M tokens by seed, read without the package."""
    found = {}
    packed = (RECORDED / f"{campaign}.jsonl.gz").read_bytes()
    for line in gzip.decompress(packed).splitlines():
        record = json.loads(line)
        if record["row"] == pe and record["config"]["train"]["num_steps"] == 6400:
            found[record["result"]["seed"]] = record["result"]["val/loss"]
    return found


def test_a_published_relation_decides_a_row(nine: Report) -> None:
    """QKVO differs from QK among the contrasts with QK, and is open among the eight relations."""
    assert nine.against["qkvo_rope"].verdict == "worse"
    assert nine.decided["qkvo_rope"].verdict == "open"
    assert nine.decided["qkvo_rope"].p_adjusted == pytest.approx(0.0511, abs=5e-5)
    assert nine.decided["vo_rope"] is nine.against["vo_rope"]

    line = frame(nine).set_index("pe").loc["qkvo_rope"]
    assert (line["verdict"], line["p"]) == ("open", "0.0511")
    assert line["p_holm"] == nine.against["qkvo_rope"].p_adjusted


def test_a_relation_decides_in_both_directions() -> None:
    """NoPE > V is published from NoPE's side, QKV > NoPE from the other."""
    report = build(read_records(RECORDED, "nine_26m"), ["pe"], reference="nope")
    primary = {(each.judged.a, each.judged.b): each.judged for each in report.relations}
    assert report.decided["v_rope"] == primary["nope", "v_rope"]
    turned = report.decided["qkv_rope"]
    straight = primary["qkv_rope", "nope"]
    assert (turned.delta, turned.low, turned.high) == (
        -straight.delta,
        -straight.high,
        -straight.low,
    )
    assert (straight.verdict, turned.verdict) == ("better", "worse")


def test_further_seeds_of_a_configuration_are_joined(nine: Report, others: list[Run]) -> None:
    """`tokens` trained six of the nine in the same configuration; the rest has no further seed."""
    joined = all_seeds(nine, others)
    assert joined is not None
    relations = {(each.judged.a, each.judged.b): each for each in joined.relations}
    expected = {
        ("k_rope", "vo_rope"), ("nope", "o_rope"), ("nope", "q_rope"), ("nope", "v_rope")
    }  # fmt: skip
    assert relations.keys() == expected
    for a, b in expected:
        of_a, of_b = ({**losses("nine_26m", pe), **losses("tokens", pe)} for pe in (a, b))
        delta_S = np.array([of_b[seed] - of_a[seed] for seed in sorted(of_a)])
        pair = relations[a, b].judged
        assert pair.num_seeds == len(delta_S) == 11
        assert pair.delta == pytest.approx(delta_S.mean())
        assert pair.p == pytest.approx(stats.ttest_1samp(delta_S, 0).pvalue)
    assert "| verdict |" not in markdown_of_seeds(joined)


def test_seeds_that_chose_a_rate_are_not_joined(nine: Report, others: list[Run]) -> None:
    chosen = [run for run in others if run.group in ("rates_26m", "qk_rate_26m", "shift_26m")]
    assert {run.config.seed for run in chosen} >= {200, 201}
    assert all_seeds(nine, chosen) is None
