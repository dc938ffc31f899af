"""Tests of the tables that add another campaign's rows."""

from dataclasses import replace

import pytest
from support.records import runs_of

from rope_exp.runs import Run
from rope_exp.studies.beside import beside


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
