"""Tests of crossings within a run, on curves made to cross at a known place."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
from support.reports import all_runs, make_run

from rope_exp.evidence.runs import Run
from rope_exp.studies.scaling.passes import passes_within

STEPS = (100, 200, 300, 400, 500)
TOKENS_M = np.array(STEPS) * 16 * 256 / 1e6


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    folder = tmp_path_factory.mktemp("runs")
    for pe in ("qk_rope", "vo_rope", "qkvo_rope", "nope"):
        for seed in (0, 1):
            make_run(folder, pe=pe, seed=seed)
    return all_runs(folder)


def with_leads(runs: list[Run], leads: Mapping[str, list[np.ndarray]]) -> list[Run]:
    """Return the runs with new held-out curves: a common one, plus 0.1 a seed, minus a lead."""
    found = []
    for run in runs:
        lead = leads.get(run.config.pe.label, [np.zeros(5)] * 2)[run.config.seed]
        losses = 6 - np.arange(5) / 2 + 0.1 * run.config.seed - lead
        rows = [{"step": step, "val/loss": loss} for step, loss in zip(STEPS, losses, strict=True)]
        found.append(replace(run, metrics=[{"step": 50, "train/loss": 7.0}, *rows]))
    return found


def lines_of(runs: list[Run]) -> dict[str, str]:
    said, table = passes_within(runs, "so many parameters")
    assert "at so many parameters:" in said
    head, _, *lines = (line.strip("| ").split(" | ") for line in table.splitlines())
    assert head == ["pair", "2.05M tokens"]
    return dict(lines)


def test_a_crossing_of_both_seeds_has_an_interval(plain: list[Run]) -> None:
    leads = {"vo_rope": [0.1 * (1.0 - TOKENS_M), 0.1 * (1.2 - TOKENS_M)]}
    told = lines_of(with_leads(plain, leads))["qk_rope, vo_rope"]
    assert told.startswith("qk_rope since 1.1M (2, ")


def test_who_is_never_passed_is_ahead_throughout(plain: list[Run]) -> None:
    lines = lines_of(with_leads(plain, {"qkvo_rope": [np.full(5, 0.1), np.full(5, 0.2)]}))
    assert lines["qk_rope, qkvo_rope"] == "qkvo_rope throughout (2)"
    assert "nope, v_rope" not in lines


def test_seeds_that_disagree_are_told_apart(plain: list[Run]) -> None:
    leads = {"qkvo_rope": [np.full(5, 0.1), 0.1 * (1.0 - TOKENS_M)]}
    lines = lines_of(with_leads(plain, leads))
    assert lines["qk_rope, qkvo_rope"] == "qkvo_rope throughout (1); qk_rope since 1M (1)"


def test_seeds_that_were_ahead_before_leave_no_interval(plain: list[Run]) -> None:
    """An interval would describe only the seeds that cross."""
    leads = {"qkvo_rope": [np.full(5, 0.1), 0.1 * (TOKENS_M - 1.0)]}
    lines = lines_of(with_leads(plain, leads))
    assert lines["qk_rope, qkvo_rope"] == "qkvo_rope since 1M (1), throughout (1)"


def test_an_interval_ends_with_the_run(plain: list[Run]) -> None:
    leads = {"vo_rope": [0.1 * (0.5 - TOKENS_M), 0.1 * (1.9 - TOKENS_M)]}
    assert lines_of(with_leads(plain, leads))["qk_rope, vo_rope"].endswith(" to the end)")


def test_a_pair_needs_a_seed_in_common(plain: list[Run]) -> None:
    alone = [
        run
        for run in with_leads(plain, {})
        if (run.config.pe.label, run.config.seed) in (("qk_rope", 0), ("vo_rope", 1))
    ]
    assert passes_within(alone, "anywhere") == []
