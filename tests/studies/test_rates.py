"""Tests of rates.md and its figure: best learning rates, and the differences there."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from support.charts import explanation
from support.records import make_records
from support.refused import refused
from support.reports import all_runs, make_run

from rope_exp.evidence.contrasts import adjusted_means
from rope_exp.evidence.records import read_records
from rope_exp.evidence.runs import Run
from rope_exp.studies import rates
from rope_exp.studies.rates import Tried, figure, find_sweeps, markdown, points

# By variant and learning rate, one loss per seed.
LOSSES = {
    ("qk_rope", 0.001): [3.60],
    ("qk_rope", 0.003): [3.50, 3.90],
    ("qk_rope", 0.01): [3.70, 4.06],
    ("qkvo_rope", 0.001): [3.40],
    ("qkvo_rope", 0.003): [3.45, 3.83],
    ("qkvo_rope", 0.01): [3.75, 4.13],
    ("k_rope", 0.001): [3.80],
    ("k_rope", 0.003): [3.55, 3.95],
    ("k_rope", 0.01): [3.30],
}


def write(folder: Path, losses: dict[tuple[str, float], list[float]]) -> str:
    for (pe, rate), values in losses.items():
        for seed, loss in enumerate(values):
            group = {"group": f"lr{rate}", "overrides": [f"optim.lr={rate}"]}
            make_run(folder, pe=pe, seed=seed, loss=loss, **group)
    return markdown(Tried.of(all_runs(folder)))


def line_of(text: str, beginning: str, table: int) -> list[str]:
    """Return the cells of the row with this beginning, in the paragraph with this number."""
    rows = [row.strip("| ").split(" | ") for row in text.split("\n\n")[table].splitlines()]
    [found] = [row for row in rows if row[0] == beginning]
    return found


@pytest.fixture
def text(tmp_path: Path) -> str:
    return write(tmp_path, LOSSES)


def test_each_variant_has_its_best_rate(text: str) -> None:
    """Differences are within a seed. A best rate at an end of the range is marked."""
    assert line_of(text, "variant", 1)[2:] == ["loss at 0.003", "0.001", "0.01", "best"]
    cells = ["1 to 2", "3.7000", "+0.1000 (1)", "+0.1800 (2)", "0.003"]
    assert line_of(text, "QK-RoPE", 1)[1:] == cells
    assert line_of(text, "QKVO-RoPE", 1)[-1] == "0.001 (at the end of the range)"
    assert text.index("K-RoPE") < text.index("QKVO-RoPE") < text.index("| QK-RoPE")


def test_a_seed_of_one_rate_tells_nothing_of_rates(text: str) -> None:
    assert line_of(text, "K-RoPE", 1)[1:5] == ["1", "3.5500", "+0.2500 (1)", "-0.2500 (1)"]


def test_differences_stand_at_the_common_and_the_best_rate(text: str) -> None:
    """Each difference is a mean over the seeds that both variants have at these rates."""
    assert "Differences from QK-RoPE at the common learning rate of 0.003" in text
    assert line_of(text, "QKVO-RoPE", 3)[1:] == ["-0.0600 (2)", "-0.1000 (1)"]
    assert line_of(text, "K-RoPE", 3)[1:] == ["+0.0500 (1)", "-0.2000 (1)"]


def test_a_relation_whose_sign_hangs_on_the_rate_is_open(text: str) -> None:
    """K is worse than QKVO at the common learning rate, and better with each at its best."""
    same = line_of(text, "QK-RoPE ≈ QKVO-RoPE", 5)
    assert same[1:] == ["-0.0500 (1)", "-0.1000 (1)", "the same"]
    other = line_of(text, "QKVO-RoPE > K-RoPE", 5)
    assert other[1:] == ["+0.1000 (1)", "-0.1000 (1)", "changed: open"]


def test_without_the_common_rate_there_is_no_difference(tmp_path: Path) -> None:
    losses = dict(LOSSES)
    del losses["k_rope", 0.003]
    losses |= {("qk_rope", 0.01): [3.70], ("qkvo_rope", 0.01): [3.75]}
    text = write(tmp_path, losses)
    assert line_of(text, "K-RoPE", 1)[2:5] == ["—", "—", "—"]
    assert line_of(text, "K-RoPE", 3)[1:] == ["—", "-0.2000 (1)"]
    assert "> K-RoPE" not in text


def test_without_the_published_rows_nothing_stands_beside(tmp_path: Path) -> None:
    """K alone has no reference and no published pair; masked tokens have no published relation."""
    kept = {key: losses for key, losses in LOSSES.items() if key[0] == "k_rope"}
    assert write(tmp_path / "k", kept).count("**") == 2

    for rate, loss in ((0.001, 5.1), (0.003, 5.0)):
        for pe in ("qk_rope", "qkvo_rope"):
            overrides = [f"optim.lr={rate}", "train.objective=mlm"]
            make_run(tmp_path / "mlm", pe=pe, loss=loss, group=f"of{rate}", overrides=overrides)
    text = markdown(Tried.of(all_runs(tmp_path / "mlm")))
    assert "Differences from QK-RoPE" in text
    assert "published" not in text


def test_runs_that_differ_in_more_than_the_rate_are_refused(tmp_path: Path) -> None:
    make_run(tmp_path, group="a", overrides=["optim.lr=0.001"])
    make_run(tmp_path, group="b", overrides=["optim.lr=0.003", "optim.weight_decay=0"])
    with refused("optim.weight_decay"):
        Tried.of(all_runs(tmp_path))


def test_without_two_rates_at_one_seed_there_is_no_table(tmp_path: Path) -> None:
    make_run(tmp_path, group="a", seed=0, overrides=["optim.lr=0.001"])
    make_run(tmp_path, group="b", seed=1, overrides=["optim.lr=0.003"])
    with refused("two learning rates with the same seed"):
        Tried.of(all_runs(tmp_path))


# -- runs of a sweep -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Run]]:
    """Return a campaign of two learning rates, and two others at the default one."""
    folder = tmp_path_factory.mktemp("records")
    tried = {"optim.lr": [0.001, 0.002]}
    make_records(folder, "lr", rows=("nope", "qk_rope"), seeds=(0,), factors=tried)
    make_records(folder, "plain", rows=("nope", "vo_rope"), seeds=(0,))
    make_records(folder, "long", rows=("nope",), seeds=(0,), factors={"train.num_steps": [1000]})
    return {name: read_records(folder, name) for name in ("lr", "plain", "long")}


def test_other_campaigns_lend_what_differs_in_the_rate_alone(records: dict[str, list[Run]]) -> None:
    """Other campaigns add runs of the campaign's variants, but no cell that it ran itself."""
    [sweep] = find_sweeps(records["lr"], [*records["plain"], *records["long"]])
    assert sorted(run.where for run in sweep) == [
        *sorted(run.where for run in records["lr"]), "plain/nope-s0"
    ]  # fmt: skip
    assert find_sweeps(records["lr"], records["lr"]) == [records["lr"]]
    assert find_sweeps(records["plain"], records["lr"]) == []


def test_a_campaign_at_tuned_rates_lends_no_runs(records: dict[str, list[Run]]) -> None:
    """Its rates were chosen by the sweep, so its runs would change what chose them."""
    plain = records["plain"]
    tuned = [
        replace(run, config=run.config.replace("optim", lr=0.001 * number))
        for number, run in enumerate(plain, start=1)
    ]
    alone = {"lr": records["lr"]}
    assert rates.files(["lr"], alone | {"plain": plain}, {}) != rates.files(["lr"], alone, {})
    assert rates.files(["lr"], alone | {"plain": tuned}, {}) == rates.files(["lr"], alone, {})


@pytest.mark.parametrize("broken", ["blocks", "weights"])
def test_runs_of_others_that_do_not_fit_end_no_report(
    records: dict[str, list[Run]], broken: str
) -> None:
    """A sweep is left out if a block has two versions of torch, or different initial weights."""
    lent = []
    for run in records["plain"]:
        if broken == "blocks":
            lent.append(replace(run, env={**run.env, "torch": "9.0"}))
        else:
            lent.append(replace(run, result={**run.result, "init_sha256": "0" * 64}))
    assert rates.files(["lr"], records | {"plain": lent}, {}) == {}


def test_each_sweep_has_its_files(records: dict[str, list[Run]]) -> None:
    assert set(rates.files(["lr"], records, {})) == {"lr/rates.md", "lr/figures/rates.svg"}
    assert rates.files(["long"], records, {}) == {}


# -- means and the figure --------------------------------------------------------------------------

RATES = [0.001, 0.003, 0.01]
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


def test_the_best_rate_is_not_that_of_the_easiest_seed() -> None:
    """Seed 1 is easy, so the raw mean at 0.003, which lacks seed 0, would be the lowest."""
    table = pd.DataFrame({0.001: [4.0, 3.0], 0.003: [np.nan, 3.1]})
    assert adjusted_means(table).to_dict() == pytest.approx({0.001: 3.5, 0.003: 3.6})


def test_a_missing_seed_takes_the_others_difference() -> None:
    table = pd.DataFrame({0.001: [4.0, 3.0, np.nan], 0.003: [3.9, 2.9, 1.0], 0.01: [np.nan] * 3})
    assert adjusted_means(table).to_dict() == pytest.approx({0.001: 2.7, 0.003: 2.6})


def line_drawn(tried: Tried, label: str) -> dict[float, float]:
    """Return a row's drawn line, its losses by learning rate."""
    table = points(tried)
    drawn = table[(table["label"] == label) & table["is_line"]]
    return drawn.set_index("rate")["loss"].round(9).to_dict()


def test_rates_draw_a_seed_the_best_and_the_common(tmp_path: Path) -> None:
    """Only seed 0 has several rates. The caption counts the diverged run."""
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

    tried = Tried.of(all_runs(tmp_path))
    assert line_drawn(tried, "qk_rope") == {0.001: 3.6, 0.003: 3.5, 0.01: 3.7}
    assert line_drawn(tried, "vo_rope") == {0.001: 3.55, 0.003: 3.65}
    table = points(tried)
    best = table[table["is_best"]].set_index("label")
    assert best["rate"].to_dict() == {"vo_rope": 0.001, "qk_rope": 0.003}
    assert tried.common == 0.003
    assert "1 diverged and is not shown" in explanation(figure(tried))


@pytest.mark.parametrize(("near", "is_marked"), [(3.71, False), (3.73, True)])
def test_a_run_that_reads_far_is_marked(tmp_path: Path, near: float, is_marked: bool) -> None:
    """Its loss falls by at least 0.18 nats to 3.54 at positions 128 to 256."""
    make_records(tmp_path, "lr", rows=["qk_rope"], seeds=[0], factors={"optim.lr": [0.001, 0.003]})
    probed = {"edges": [0, 8, 32, 128, 256], "loss": [5.0, near, 3.6, 3.54]}
    runs = read_records(tmp_path, "lr")
    runs[1] = replace(runs[1], probes={"positions": probed})
    text = markdown(Tried.of(runs))
    assert ("\\* |" in text) == is_marked
    assert ("probably copy" in text) == is_marked


def test_named_rows_that_differ_in_more_stand_in_one_table(tmp_path: Path) -> None:
    """The rows have the same variant, and differ by an attention sink or a window."""
    more = {"qk": [], "sink": ["attn.sink=true"], "windows": ["model.window=64"]}
    rows = {name: ["pe=qk_rope", *words, f"row_name={name}"] for name, words in more.items()}
    for rate, seeds in {0.003: [0, 1], 0.006: [1]}.items():
        make_records(
            tmp_path,
            "frontier",
            rows=rows,
            seeds=seeds,
            loss=lambda row, seed, rate=rate: 4 - 0.1 * list(rows).index(row) - rate,
            factors={"optim.lr": [rate]},
        )

    [sweep] = find_sweeps(read_records(tmp_path, "frontier"), [])
    tried = Tried.of(sweep)
    assert line_drawn(tried, "row=sink") == {0.003: 3.897, 0.006: 3.894}
    for number, name in enumerate(rows):
        cells = line_of(markdown(tried), name, 1)
        assert cells[:4] == [name, "1", f"{4 - 0.1 * number - 0.003:.4f}", "-0.0030 (1)"]
    assert line_of(markdown(tried), "sink", 3) == ["sink", "-0.1000 (1)", "-0.1000 (1)"]
