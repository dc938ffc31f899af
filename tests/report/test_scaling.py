"""The ladders' page: who passes whom, and what the lines say of the published relations."""

import numpy as np
import pytest
from support.records import make_records, nine_losses

from rope_exp.evidence.records import read_records
from rope_exp.report.scaling import scaling_files

STEPS = [250, 500, 1000, 2000]
ROWS = ("qk_rope", "qkvo_rope", "vo_rope", "qkv_rope")


def lines_of(text: str, beginning: str) -> list[list[str]]:
    """The cells of the rows of tables that begin so."""
    rows = [line.strip("| ").split(" | ") for line in text.splitlines()]
    return [row for row in rows if row[0] == beginning]


@pytest.fixture(scope="module")
def ladder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Four rows at four budgets; QKVO's lead over QK falls with the logarithm of the budget."""
    folder = tmp_path_factory.mktemp("records")
    for steps in STEPS:
        name = f"of_{steps}"

        def loss(row: str, seed: int, steps: int = steps) -> float:
            lead = 0.05 * (np.log2(steps / 4000)) if row == "qkvo_rope" else 0.0
            return nine_losses("qk_rope" if row == "qkvo_rope" else row, seed) + lead

        factors = {"train.num_steps": [steps]}
        make_records(folder, name, rows=ROWS, seeds=(0,), loss=loss, factors=factors)
    runs = [run for steps in STEPS for run in read_records(folder, f"of_{steps}")]
    return scaling_files(runs)["scaling.md"].decode()


def test_a_crossing_beyond_the_ladder_is_found(ladder: str) -> None:
    """QKVO is level with QK at 4,000 steps, twice the most that was run."""
    [line] = lines_of(ladder, "qkvo_rope minus qk_rope")
    assert float(line[4].split()[0]) == pytest.approx(0.05, abs=0.005)
    assert float(line[5].split("M")[0]) == pytest.approx(4000 * 16 * 256 / 1e6, rel=0.05)


def test_what_does_not_move_has_no_crossing(ladder: str) -> None:
    [line] = lines_of(ladder, "vo_rope minus qk_rope")
    assert "not to be told" in line[5]


def test_the_relations_are_read_from_intervals(ladder: str) -> None:
    """By then QKVO's line is far behind QK's, and VO's stays where the losses put it."""
    [qkvo] = lines_of(ladder, "qk_rope ≈ qkvo_rope")
    assert qkvo[3] == "contradicted"
    [vo] = lines_of(ladder, "vo_rope > qkv_rope")
    low = float(vo[2].split(" to ")[0])
    assert (vo[3] == "predicted") == (low > 0)
