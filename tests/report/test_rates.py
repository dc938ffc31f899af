"""Tests of rates.md: which runs are a rate series, and means of a table with holes."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from support.records import diverged, ended_at, runs_of
from support.refused import refused
from support.reports import all_runs, make_run

from rope_exp import rates
from rope_exp.folder import Run
from rope_exp.rates import find_rate_series, markdown
from rope_exp.stats import adjusted_means

RATES = [0.001, 0.003, 0.01]


def line_of(text: str, beginning: str, table: int) -> list[str]:
    """Return the further cells of the row with this beginning, in this paragraph."""
    rows = [row.strip("| ").split(" | ") for row in text.split("\n\n")[table].splitlines()]
    [cells] = [cells for first, *cells in rows if first == beginning]
    return cells


def test_differences_are_within_a_seed(tmp_path: Path) -> None:
    """By hand, at the common rate and with each row at its best."""
    # A list for each learning rate, with a loss for each seed.
    losses = {
        "qk_rope": [[3.60], [3.50, 3.90], [3.70, 4.06]],
        "qkvo_rope": [[3.40], [3.45, 3.83], [3.75, 4.13]],
        "k_rope": [[3.80], [3.55, 3.95], [3.30]],
    }
    for pe, of_rates in losses.items():
        for rate, of_seeds in zip(RATES, of_rates, strict=True):
            for seed, loss in enumerate(of_seeds):
                make_run(
                    tmp_path,
                    pe=pe,
                    seed=seed,
                    loss=loss,
                    group=f"lr{rate}",
                    overrides=[f"optim.lr={rate}"],
                )
    text = markdown(all_runs(tmp_path))
    cells = ["1 to 2", "3.7000", "+0.1000 (1)", "+0.1800 (2)", "0.003"]
    assert line_of(text, "QK-RoPE", 1) == cells
    assert line_of(text, "QKVO-RoPE", 1)[-1] == "0.001 (at the end of the range)"
    assert line_of(text, "QKVO-RoPE", 3) == ["-0.0600 (2)", "-0.1000 (1)"]
    assert line_of(text, "K-RoPE", 1)[:4] == ["1", "3.5500", "+0.2500 (1)", "-0.2500 (1)"]
    assert line_of(text, "K-RoPE", 3) == ["+0.0500 (1)", "-0.2000 (1)"]
    # K is worse than QKVO at the common learning rate, and better with each at its best.
    other = line_of(text, "QKVO-RoPE > K-RoPE", 5)
    assert other == ["+0.1000 (1)", "-0.1000 (1)", "changed: open"]


@pytest.mark.parametrize(
    ("seed", "overrides", "words"),
    [
        (0, ["optim.lr=0.003", "optim.weight_decay=0"], "optim.weight_decay"),
        (1, ["optim.lr=0.003"], "two learning rates with the same seed"),
    ],
)
def test_runs_that_are_no_rate_series_are_refused(
    tmp_path: Path, seed: int, overrides: list[str], words: str
) -> None:
    make_run(tmp_path, group="a", overrides=["optim.lr=0.001"])
    make_run(tmp_path, group="b", seed=seed, overrides=overrides)
    with refused(words):
        markdown(all_runs(tmp_path))


@pytest.fixture(scope="module")
def records() -> dict[str, list[Run]]:
    """Return a campaign of several learning rates, and another at one of them."""
    runs = runs_of("lr", "nope", "qk_rope", "vo_rope", seeds=(0,))
    plain = [
        replace(run, group="plain", where=f"plain/{run.row}-s0", factors={"seed": 0})
        for run in runs
        if run.config.optim.lr == 0.003 and run.row != "qk_rope"
    ]
    tried = [run for run in runs if run.config.optim.lr != 0.003 and run.row != "vo_rope"]
    return {"lr": tried, "plain": plain}


def test_other_campaigns_lend_what_differs_in_the_rate_alone(records: dict[str, list[Run]]) -> None:
    """Other campaigns add runs of the campaign's variants, but no cell that it ran itself."""
    [series] = find_rate_series(records["lr"], records["plain"])
    added = {run.where for run in series} - {run.where for run in records["lr"]}
    assert added == {"plain/nope-s0"}
    assert find_rate_series(records["plain"], records["lr"]) == []


@pytest.mark.parametrize("broken", ["blocks", "weights", "tuned"])
def test_runs_of_others_that_do_not_fit_end_no_report(
    records: dict[str, list[Run]], broken: str
) -> None:
    """A campaign at tuned rates lends no runs: its rates were chosen by a rate series.

    Nor is a run lent to a block with another version of torch. A series is left out if a block has
    different initial weights.
    """
    lent = records["plain"]
    if broken == "blocks":
        lent = [replace(run, env={**run.env, "torch": "9.0"}) for run in lent]
    elif broken == "weights":
        weights = dict.fromkeys(("init_sha256", "shared_init_sha256"), "0" * 64)
        lent = [replace(run, result={**run.result, **weights}) for run in lent]
    else:
        lent = [
            replace(run, config=run.config.replace("optim", lr=0.001 * number))
            for number, run in enumerate(lent, start=1)
        ]
    alone = {"lr": records["lr"]}
    expected = {} if broken == "weights" else rates.files(["lr"], alone)
    assert rates.files(["lr"], alone | {"plain": lent}) == expected
    assert rates.files(["lr"], records).keys() == {"lr/rates.md"}


@pytest.mark.parametrize(("device", "is_lent"), [("cuda", True), ("cpu", False)])
def test_threads_of_the_host_matter_to_no_gpu(
    records: dict[str, list[Run]], device: str, is_lent: bool
) -> None:
    def there(run: Run, num_threads: int) -> Run:
        config = run.config.replace("launch", device=device)
        return replace(run, config=config, env={**run.env, "num_threads": num_threads})

    own = [there(run, 1) for run in records["lr"]]
    lent = [there(run, 2) for run in records["plain"]]
    [series] = find_rate_series(own, lent)
    assert any(run.group == "plain" for run in series) == is_lent


def test_a_run_that_diverged_is_counted(records: dict[str, list[Run]]) -> None:
    first, *others = records["lr"]
    assert "1 diverged and is not shown" in markdown([diverged(first), *others])


@pytest.mark.parametrize(("near", "is_marked"), [(3.71, False), (3.73, True)])
def test_a_run_that_reads_far_is_marked(
    records: dict[str, list[Run]], near: float, is_marked: bool
) -> None:
    """Its loss falls by at least 0.18 nats to 3.54 at positions 128 to 256."""
    probed = {"edges": [0, 8, 32, 128, 256], "loss": [5.0, near, 3.6, 3.54]}
    runs = [replace(run, probes={}) for run in records["lr"]]
    runs[1] = replace(ended_at(runs[1], 3.5), probes={"positions": probed})
    text = markdown(runs)
    assert ("\\* |" in text) == is_marked
    assert ("probably copy" in text) == is_marked


EFFECTS = st.floats(-1, 1, width=32)


@given(
    of_rate=arrays(float, 3, elements=EFFECTS),
    of_seed=arrays(float, 4, elements=EFFECTS),
    is_run=arrays(bool, (4, 3)),
)
def test_missing_seeds_shift_no_rate(
    of_rate: np.ndarray, of_seed: np.ndarray, is_run: np.ndarray
) -> None:
    """If losses are rate part + seed part, means differ by the rate parts, whatever is missing."""
    # Seed 0 was run at every learning rate, so any two of them share a seed.
    is_run[0] = True
    losses = np.where(is_run, of_seed[:, None] + of_rate, np.nan)
    means = adjusted_means(pd.DataFrame(losses, columns=RATES))
    # The means are rounded to nine digits.
    np.testing.assert_allclose(means - means.iloc[0], of_rate - of_rate[0], atol=2e-9)
