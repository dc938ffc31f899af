"""Tests of scripts/error_and_power.py: its rule, its file, and the page that shows its numbers."""

import itertools
import math

import error_and_power as simulation
import numpy as np
import pandas as pd
import pytest
from support.configs import REPOSITORY

from rope_exp.stats import judge

PAGE = REPOSITORY / "docs" / "comparing.md"


@pytest.mark.parametrize("noise", simulation.NOISES)
def test_many_experiments_are_judged_as_one_is(noise: str) -> None:
    """`judge_many` gives the numbers and the verdict of `rope_exp.stats.judge`."""
    random = np.random.default_rng(1)
    for num_seeds, family in itertools.product(simulation.SEEDS, simulation.FAMILIES.values()):
        loss_DSV = simulation.NOISES[noise](random, (4, num_seeds, 9), 0.01)
        loss_DSV[..., 1] += 0.03
        judged = simulation.judge_many(loss_DSV, family)

        for draw, loss_SV in enumerate(loss_DSV):
            table = pd.DataFrame(loss_SV, columns=[*"abcdefghi"])
            pairs = [("abcdefghi"[a], "abcdefghi"[b]) for a, b in family]
            expected = judge(table, pairs, plan=False)
            np.testing.assert_allclose(judged.delta_DP[draw], expected["delta"])
            np.testing.assert_allclose(judged.p_adjusted_DP[draw], expected["p_adjusted"])
            np.testing.assert_allclose(judged.p_equivalent_DP[draw], expected["p_equivalent"])
            is_better_P = simulation.is_better(judged)[draw]
            assert is_better_P.tolist() == (expected["verdict"] == "better").tolist()


def test_the_noises_leave_true_means_equal() -> None:
    """Otherwise a difference that is found would not be a false one."""
    for draw in simulation.NOISES.values():
        loss_DSV = draw(np.random.default_rng(2), (40_000, 2, 9), 0.01)
        mean_V = loss_DSV.mean(axis=(0, 1))
        error_V = loss_DSV.std(axis=(0, 1)) / math.sqrt(80_000)
        assert (abs(mean_V - mean_V.mean()) < 5 * error_V).all()


@pytest.mark.parametrize("setting", [*simulation.settings()][::3])
def test_the_file_holds_what_the_script_simulates(setting: tuple[str, float, float]) -> None:
    """Fewer draws give its shares within four standard errors."""
    keys = ["noise", "paired_sd", "difference", "seeds", "family"]
    stored = pd.read_csv(simulation.CSV).set_index(keys)
    for line in simulation.simulate(*setting, num_seeds=5, num_draws=1000):
        expected = stored.to_dict("index")[tuple(line[key] for key in keys)]
        for column, share in expected.items():
            error = math.sqrt(max(share * (1 - share), 0.001) / 1000)
            assert line[str(column)] == pytest.approx(share, abs=4 * error)


def test_the_file_has_every_setting() -> None:
    stored = pd.read_csv(simulation.CSV)
    found = set(stored[["noise", "paired_sd", "difference"]].itertuples(index=False, name=None))
    assert found == set(simulation.settings())
    assert len(stored) == len(found) * len(simulation.SEEDS) * len(simulation.FAMILIES)


def test_the_page_shows_the_numbers_of_the_file() -> None:
    """After a change, `python scripts/error_and_power.py` prints the tables of the page."""
    page = PAGE.read_text(encoding="utf-8")
    for table in simulation.markdown(pd.read_csv(simulation.CSV)):
        assert table in page
