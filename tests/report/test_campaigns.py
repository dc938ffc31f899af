"""Tests of `write_campaigns`, which writes tables and figures from records."""

import csv
from pathlib import Path
from typing import Any

import pytest
from scipy import stats
from support import records
from support.records import ENV, make_records, nine_losses
from support.refused import refused
from support.reports import table_rows

from rope_exp.report import command
from rope_exp.report.command import write_campaigns


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the figures, which take most of the time and are not checked here."""
    monkeypatch.setattr(command, "of_report", lambda *_: {})


def files_of(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_the_same_records_give_the_same_bytes(tmp_path: Path) -> None:
    make_records(tmp_path / "records", "english", seeds=(0, 1, 2))
    for out in ("first", "second"):
        write_campaigns(tmp_path / "records", None, tmp_path / out)
    first = files_of(tmp_path / "first")
    assert "english/table.md" in first
    assert first == files_of(tmp_path / "second")


@pytest.mark.usefixtures("undrawn")
def test_a_table_holds_the_means_of_the_records(tmp_path: Path) -> None:
    make_records(tmp_path / "records", "english", seeds=(0, 1, 2))
    write_campaigns(tmp_path / "records", "english", tmp_path)
    rows = table_rows(tmp_path / "english")
    assert len(rows) == 9
    mean = sum(nine_losses("vo_rope", seed) for seed in range(3)) / 3
    assert float(rows["vo_rope"]["loss_mean"]) == pytest.approx(mean, abs=1e-6)
    assert rows["vo_rope"]["group"] == "english"


@pytest.mark.usefixtures("undrawn")
def test_each_level_of_a_factor_has_a_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Levels share no table, so each may come from a machine of its own."""
    rows = ("qk_rope", "vo_rope", "nope")
    for steps, torch in ((500, "2.13.0"), (1000, "2.14.0")):
        monkeypatch.setitem(ENV, "torch", torch)
        factors = {"train.num_steps": [steps]}
        make_records(tmp_path / "records", "tokens", rows=rows, seeds=(0,), factors=factors)
    write_campaigns(tmp_path / "records", "tokens", tmp_path)
    for steps in (500, 1000):
        text = (tmp_path / "tokens" / f"train.num_steps={steps}" / "table.md").read_text()
        assert f"{steps * 4096:,} tokens per run" in text


@pytest.mark.usefixtures("undrawn")
def test_unequal_seeds_are_told(tmp_path: Path) -> None:
    make_records(tmp_path / "records", "english")
    make_records(tmp_path / "records", "english", rows=("qk_rope", "qkvo_rope"), seeds=(5, 6, 7))
    write_campaigns(tmp_path / "records", "english", tmp_path)
    with (tmp_path / "english" / "pairs.csv").open(encoding="utf-8", newline="") as file:
        pairs = {(row["a"], row["b"]): row["num_seeds"] for row in csv.DictReader(file)}
    assert pairs["qk_rope", "qkvo_rope"] == "8"
    assert pairs["qk_rope", "vo_rope"] == "5"


@pytest.mark.parametrize(("key", "other"), [("torch", "2.14.0"), ("num_threads", 2)])
def test_a_block_that_was_computed_in_two_ways_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str, other: Any
) -> None:
    make_records(tmp_path / "records", "english", rows=("qk_rope",), seeds=(0, 1))
    monkeypatch.setitem(ENV, key, other)
    make_records(tmp_path / "records", "english", rows=("vo_rope",), seeds=(1, 2))
    with refused(f"seed 1 of english has runs with {key} ", str(other)):
        write_campaigns(tmp_path / "records", None, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("undrawn")
def test_a_block_of_two_commits_is_marked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_records(tmp_path / "records", "english", rows=("qk_rope",), seeds=(0, 1))
    monkeypatch.setitem(ENV, "git", {"commit": "fedcba9876543210", "dirty": False})
    make_records(tmp_path / "records", "english", rows=("vo_rope",), seeds=(0, 1))
    write_campaigns(tmp_path / "records", "english", tmp_path)
    text = (tmp_path / "english" / "table.md").read_text()
    assert "Runs of seed 1 differ in git: 0123456789, fedcba9876." in text


def test_a_probe_that_was_not_finite_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One number of one row's answer is null in its record, and the figure is still drawn."""
    answers = records._probes

    def overflowing(row: str, seed: int, loss: float) -> dict[str, Any]:
        found = answers(row, seed, loss)
        if row == "vo_rope":
            found["shift"]["loss"][-1] = None
        return found

    monkeypatch.setattr(records, "_probes", overflowing)
    make_records(tmp_path / "records", "english", rows=("qk_rope", "vo_rope"), seeds=(0,))
    write_campaigns(tmp_path / "records", None, tmp_path / "out")
    assert (tmp_path / "out/english/figures/probes.svg").exists()


def test_a_campaign_without_records_is_refused(tmp_path: Path) -> None:
    make_records(tmp_path / "records", "english", rows=("qk_rope",), seeds=(0,))
    with refused("holds no records of campaign table. Available: english"):
        write_campaigns(tmp_path / "records", "table", tmp_path / "out")
    with refused("empty holds no campaign records"):
        write_campaigns(tmp_path / "empty", None, tmp_path / "out")
    assert not (tmp_path / "out").exists()


# -- the second protocol ---------------------------------------------------------------------------

ROWS = ("qk_rope", "qkvo_rope", "k_rope", "nope")
OWN_RATES = {row: [f"pe={row}", f"optim.lr={0.001 * n}"] for n, row in enumerate(ROWS, 1)}


@pytest.mark.usefixtures("undrawn")
def test_a_paired_campaign_pools_nothing(tmp_path: Path) -> None:
    """Its intervals are those of scipy's paired t test, although its rows have equal noise."""
    make_records(tmp_path / "records", "ours", rows=ROWS, test="paired")
    write_campaigns(tmp_path / "records", "ours", tmp_path)
    row = table_rows(tmp_path / "ours")["k_rope"]
    losses = [[nine_losses(name, seed) for seed in range(5)] for name in ("k_rope", "qk_rope")]
    interval = stats.ttest_rel(*losses).confidence_interval()
    assert float(row["delta_ci_low"]) == pytest.approx(interval.low, abs=1e-6)
    assert float(row["delta_ci_high"]) == pytest.approx(interval.high, abs=1e-6)

    text = (tmp_path / "ours/table.md").read_text(encoding="utf-8")
    assert "Test: paired t test (docs/protocol-2.md)." in text


@pytest.mark.usefixtures("undrawn")
def test_rows_of_a_campaign_may_have_rates_of_their_own(tmp_path: Path) -> None:
    """The rows share one table, with the published relations and a column of the rates."""
    make_records(tmp_path / "records", "ours", rows=OWN_RATES, seeds=(0, 1, 2))
    write_campaigns(tmp_path / "records", "ours", tmp_path)
    text = (tmp_path / "ours/table.md").read_text(encoding="utf-8")
    assert "QK-RoPE ≈ QKVO-RoPE" in text
    assert "| QK-RoPE | q k | 0.001 |" in text
    assert "| NoPE | — | 0.004 |" in text


@pytest.mark.usefixtures("undrawn")
def test_rates_that_differ_within_a_row_are_refused(tmp_path: Path) -> None:
    make_records(tmp_path / "records", "ours", rows=["qk_rope"], seeds=(0,))
    make_records(tmp_path / "records", "ours", rows={"qk_rope": OWN_RATES["qk_rope"]}, seeds=(1,))
    with refused("two variants under one name"):
        write_campaigns(tmp_path / "records", "ours", tmp_path)
