"""Tests that the published relations decide, and of tables joined with other campaigns."""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import pytest
import support.records
from joined import all_seeds, all_seeds_md, beside
from scipy import stats
from tables import RECORDS

from rope_exp.folder import Run
from rope_exp.report import Report, build

runs_of = partial(support.records.runs_of, records=RECORDS)


def by_pair(report: Report) -> pd.DataFrame:
    """Return the published relations by their pair."""
    return report.pairs["published"].set_index(["a", "b"])


def test_a_relation_decides_in_both_directions() -> None:
    """NoPE > V is published from NoPE's side, QKV > NoPE from the other."""
    report = build(runs_of("nine_26m"), ["pe"], reference="nope")
    primary = by_pair(report)
    decided = report.decided["v_rope"]
    straight: Any = primary.loc[("nope", "v_rope")]
    for key in ("delta", "p_adjusted", "delta_wide_low", "verdict"):
        assert decided[key] == straight[key]
    turned = report.decided["qkv_rope"]
    straight = primary.loc[("qkv_rope", "nope")]
    assert turned["delta"] == -straight["delta"]
    assert turned["delta_ci_low"] == -straight["delta_ci_high"]
    assert straight["verdict"] == "better"
    assert turned["verdict"] == "worse"


def test_further_seeds_of_a_configuration_are_joined() -> None:
    """`tokens` trained six of the nine in the same configuration; other campaigns chose a rate."""
    names = ("tokens", "rates_26m", "qk_rate_26m", "shift_26m")
    others = [run for name in names for run in runs_of(name)]
    joined = all_seeds(build(runs_of("nine_26m"), ["pe"]), others)
    assert joined is not None
    relations = by_pair(joined)
    assert {*relations.index} == {
        ("k_rope", "vo_rope"),
        ("nope", "o_rope"),
        ("nope", "q_rope"),
        ("nope", "v_rope"),
    }
    losses: dict[str, dict[int, float]] = {}
    for run in [*runs_of("nine_26m"), *runs_of("tokens")]:
        if run.config.train.num_steps == 6400:
            losses.setdefault(run.row, {})[run.config.seed] = run.loss or 0.0
    for pair in relations.reset_index().to_dict("records"):
        a, b = pair["a"], pair["b"]
        delta_S = np.array([losses[b][seed] - losses[a][seed] for seed in sorted(losses[a])])
        assert len(delta_S) == 11
        assert pair["num_seeds"] == 11
        assert pair["delta"] == pytest.approx(delta_S.mean())
        assert pair["p"] == pytest.approx(stats.ttest_1samp(delta_S, 0).pvalue)
    assert "| verdict |" not in all_seeds_md(joined)


def named(group: str, runs: list[Run]) -> list[Run]:
    """Return the runs as those of another campaign."""
    return [replace(run, group=group, where=f"{group}/{run.row}") for run in runs]


def test_of_several_with_the_reference_the_largest_stands_beside() -> None:
    """Only one campaign is added: with all that fit, the table would change with each new one."""
    mine = named("more", runs_of("english", "vo_rope", seeds=(0, 1)))
    both = ("qk_rope", "nope")
    small = named("a", runs_of("english", *both, seeds=(0,)))
    large = named("b", runs_of("english", *both, seeds=(0, 1)))
    without = named("c", runs_of("english", "v_rope", "k_rope", "o_rope", seeds=(0, 1)))

    found = beside(mine, [*small, *large, *without])
    assert found is not None
    assert found.groups == "b, more"
    assert beside(mine, without) is None
    assert beside(large, small) is None


@pytest.mark.parametrize("broken", ["blocks", "weights"])
def test_runs_of_others_that_do_not_fit_are_left_out(broken: str) -> None:
    """Two versions of torch or different initial weights in a block do not fail the report."""
    lent = named("other", runs_of("english", "qk_rope", "nope", seeds=(0, 1)))
    mine = runs_of("english", "vo_rope", seeds=(0, 1))
    assert beside(mine, lent) is not None
    if broken == "blocks":
        lent = [replace(run, env={**run.env, "torch": "9.0"}) for run in lent]
    else:
        lent = [replace(run, result={**run.result, "init_sha256": "0" * 64}) for run in lent]
    assert beside(mine, lent) is None
