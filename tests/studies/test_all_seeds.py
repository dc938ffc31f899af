"""Tests that the published relations decide, and that further seeds are joined, on real records."""

import gzip
import json
from collections.abc import Mapping

import numpy as np
import pytest
from scipy import stats
from support.configs import RECORDED

from rope_exp.records import read_records
from rope_exp.report import build
from rope_exp.studies.all_seeds import all_seeds, all_seeds_md


def losses(campaign: str, pe: str) -> Mapping[int, float]:
    """Return losses at 26M tokens by seed, read without the package."""
    found = {}
    packed = (RECORDED / f"{campaign}.jsonl.gz").read_bytes()
    for line in gzip.decompress(packed).splitlines():
        record = json.loads(line)
        if record["row"] == pe and record["config"]["train"]["num_steps"] == 6400:
            found[record["result"]["seed"]] = record["result"]["val/loss"]
    return found


def test_a_relation_decides_in_both_directions() -> None:
    """NoPE > V is published from NoPE's side, QKV > NoPE from the other."""
    report = build(read_records(RECORDED, "nine_26m"), ["pe"], reference="nope")
    primary = {(pair["a"], pair["b"]): pair for pair in report.relations}
    assert report.decided["v_rope"].items() <= primary["nope", "v_rope"].items()
    turned = report.decided["qkv_rope"]
    straight = primary["qkv_rope", "nope"]
    assert (turned["delta"], turned["delta_ci_low"], turned["delta_ci_high"]) == (
        -straight["delta"],
        -straight["delta_ci_high"],
        -straight["delta_ci_low"],
    )
    assert (straight["verdict"], turned["verdict"]) == ("better", "worse")


def test_further_seeds_of_a_configuration_are_joined() -> None:
    """`tokens` trained six of the nine in the same configuration; other campaigns chose a rate."""
    nine = build(read_records(RECORDED, "nine_26m"), ["pe"])
    others = ("tokens", "rates_26m", "qk_rate_26m", "shift_26m")
    joined = all_seeds(nine, [run for name in others for run in read_records(RECORDED, name)])
    assert joined is not None
    relations = {(pair["a"], pair["b"]): pair for pair in joined.relations}
    expected = {
        ("k_rope", "vo_rope"), ("nope", "o_rope"), ("nope", "q_rope"), ("nope", "v_rope")
    }  # fmt: skip
    assert relations.keys() == expected
    for a, b in expected:
        of_a, of_b = ({**losses("nine_26m", pe), **losses("tokens", pe)} for pe in (a, b))
        delta_S = np.array([of_b[seed] - of_a[seed] for seed in sorted(of_a)])
        pair = relations[a, b]
        assert pair["num_seeds"] == len(delta_S) == 11
        assert pair["delta"] == pytest.approx(delta_S.mean())
        assert pair["p"] == pytest.approx(stats.ttest_1samp(delta_S, 0).pvalue)
    assert "| verdict |" not in all_seeds_md(joined)
