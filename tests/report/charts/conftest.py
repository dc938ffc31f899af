from typing import Any

import pytest
from support.reports import make_run, report_of

from rope_exp.report.content import Report


@pytest.fixture(scope="package")
def partly(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """Rows, and the reference, of whose seeds some diverged."""
    runs = tmp_path_factory.mktemp("partly")
    for pe, count in {"qk_rope": 3, "qkvo_rope": 4, "k_rope": 2, "vo_rope": 1}.items():
        for seed in range(4):
            loss = 3.5 + 0.1 * seed + 0.01 * len(pe) * (1 + 0.01 * (seed % 2))
            finished: dict[str, Any] = {"loss": loss}
            lost = {"loss": None, "steps": 100, "result": {"steps": 100}}
            make_run(runs, pe=pe, seed=seed, **(finished if seed < count else lost))
    return report_of(runs)
