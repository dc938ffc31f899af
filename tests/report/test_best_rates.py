"""The table of learning rates: each variant's best, and what that does to the differences."""

from pathlib import Path

import pytest
from support.refused import refused
from support.reports import all_runs, make_run

from rope_exp.report.best_rates import best_rates_file
from rope_exp.report.paper.rates import rates

# By variant and rate, seed by seed.
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
    return best_rates_file(all_runs(folder)).decode()


def line_of(text: str, beginning: str, table: int) -> list[str]:
    """The cells of the row that begins so, in a table by its place."""
    rows = [row.strip("| ").split(" | ") for row in text.split("\n\n")[table].splitlines()]
    [found] = [row for row in rows if row[0] == beginning]
    return found


@pytest.fixture
def text(tmp_path: Path) -> str:
    return write(tmp_path, LOSSES)


def test_each_variant_has_its_best_rate(text: str) -> None:
    """What a rate lacks is filled by differences; a best rate at an end may be further out."""
    assert line_of(text, "variant", 1)[2:] == ["0.001", "0.003", "0.01", "best rate"]
    assert line_of(text, "QK-RoPE", 1)[1:] == ["1 to 2", "3.8000", "3.7000", "3.8800", "0.003"]
    assert line_of(text, "QKVO-RoPE", 1)[-1] == "0.001 (the last that was tried)"
    assert text.index("K-RoPE") < text.index("QKVO-RoPE") < text.index("| QK-RoPE")


def test_a_seed_of_one_rate_tells_nothing_of_rates(text: str) -> None:
    assert line_of(text, "K-RoPE", 1)[1:5] == ["1", "3.8000", "3.5500", "3.3000"]


def test_differences_stand_at_the_common_and_the_best_rate(text: str) -> None:
    """Each over the seeds that both have there."""
    assert "Differences to QK-RoPE at the common rate of 0.003" in text
    assert line_of(text, "QKVO-RoPE", 3)[1:] == ["-0.0600 (2)", "-0.1000 (1)"]
    assert line_of(text, "K-RoPE", 3)[1:] == ["+0.0500 (1)", "-0.2000 (1)"]


def test_a_relation_whose_sign_hangs_on_the_rate_is_open(text: str) -> None:
    """K is behind QKVO at the common rate, and before it at its own best."""
    same = line_of(text, "QK-RoPE ≈ QKVO-RoPE", 5)
    assert same[1:] == ["-0.0500 (1)", "-0.1000 (1)", "the same"]
    other = line_of(text, "QKVO-RoPE > K-RoPE", 5)
    assert other[1:] == ["+0.1000 (1)", "-0.1000 (1)", "another: open"]


def test_without_the_common_rate_there_is_no_difference(tmp_path: Path) -> None:
    losses = dict(LOSSES)
    del losses["k_rope", 0.003]
    losses |= {("qk_rope", 0.01): [3.70], ("qkvo_rope", 0.01): [3.75]}
    text = write(tmp_path, losses)
    assert line_of(text, "K-RoPE", 1)[2:5] == ["3.8000", "—", "3.3000"]
    assert line_of(text, "K-RoPE", 3)[1:] == ["—", "-0.2000 (1)"]
    assert "> K-RoPE" not in text


def test_without_the_published_rows_nothing_stands_beside(tmp_path: Path) -> None:
    """Neither QK nor a pair of published rows: losses alone; of hidden tokens, no relations."""
    kept = {key: losses for key, losses in LOSSES.items() if key[0] == "k_rope"}
    assert write(tmp_path / "k", kept).count("**") == 2

    for rate, loss in ((0.001, 5.1), (0.003, 5.0)):
        for pe in ("qk_rope", "qkvo_rope"):
            overrides = [f"optim.lr={rate}", "train.objective=mlm"]
            make_run(tmp_path / "mlm", pe=pe, loss=loss, group=f"of{rate}", overrides=overrides)
    text = best_rates_file(all_runs(tmp_path / "mlm")).decode()
    assert "Differences to QK-RoPE" in text
    assert "published" not in text


def test_runs_that_differ_in_more_than_the_rate_are_refused(tmp_path: Path) -> None:
    make_run(tmp_path, group="a", overrides=["optim.lr=0.001"])
    make_run(tmp_path, group="b", overrides=["optim.lr=0.003", "optim.weight_decay=0"])
    with refused("optim.weight_decay"):
        best_rates_file(all_runs(tmp_path))


def test_without_two_rates_at_one_seed_there_is_no_table(tmp_path: Path) -> None:
    make_run(tmp_path, group="a", seed=0, overrides=["optim.lr=0.001"])
    make_run(tmp_path, group="b", seed=1, overrides=["optim.lr=0.003"])
    with refused("two rates and one seed"):
        best_rates_file(all_runs(tmp_path))
    assert rates(all_runs(tmp_path)) is None
