from typing import Any

import pytest
from support.reports import make_run, report_of

from rope_exp.report.content import Report

# Losses by seed. VO is far noisier than the others, and O has one seed.
OURS = {
    "qk_rope": [3.500, 3.600, 3.700],
    "qkvo_rope": [3.501, 3.602, 3.700],
    "vo_rope": [3.9, 3.5, 3.4],
    "k_rope": [3.6, 3.7005, 3.7995],
    "o_rope": [3.7],
    "pe.rotate=[q,v]": [3.45, 3.551, 3.652],
}


@pytest.fixture(scope="package")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """Return a report of rows that differ in noise and number of seeds; V diverged."""
    runs = tmp_path_factory.mktemp("runs")
    for pe, losses in OURS.items():
        for seed, loss in enumerate(losses):
            make_run(runs, pe=pe, seed=seed, loss=loss)
    make_run(runs, pe="v_rope", loss=None, steps=100, result={"steps": 100})
    return report_of(runs)


@pytest.fixture(scope="package")
def partly(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """Return a report of rows, including the reference, with some diverged seeds."""
    runs = tmp_path_factory.mktemp("partly")
    for pe, count in {"qk_rope": 3, "qkvo_rope": 4, "k_rope": 2, "vo_rope": 1}.items():
        for seed in range(4):
            loss = 3.5 + 0.1 * seed + 0.01 * len(pe) * (1 + 0.01 * (seed % 2))
            finished: dict[str, Any] = {"loss": loss}
            lost = {"loss": None, "steps": 100, "result": {"steps": 100}}
            make_run(runs, pe=pe, seed=seed, **(finished if seed < count else lost))
    return report_of(runs)
