"""Tests of scripts/replicates.py: pairs of records of one config, and their differences."""

import json
import shutil
import statistics
from pathlib import Path

import pytest
import replicates
from support.configs import REPOSITORY

from rope_exp.evidence.records import canonical, digest
from rope_exp.evidence.runs import ReportError

RECORDS = REPOSITORY / "results/records"
REPLICATES = REPOSITORY / "results/replicates"


def test_the_page_has_the_differences_of_the_records() -> None:
    """Mean and deviation are recomputed from the files."""
    differences = []
    for path in REPLICATES.glob("*/*.json"):
        losses = [
            json.loads(path.read_bytes())["result"]["val/loss"]
            for path in (path, RECORDS / path.relative_to(REPLICATES))
        ]
        differences.append(losses[0] - losses[1])
    text = (REPOSITORY / "results/replicates.md").read_text(encoding="utf-8")
    mean, sd = statistics.mean(differences), statistics.stdev(differences)
    largest = max(map(abs, differences))
    told = f"mean {mean:+.4f}, standard deviation {sd:.4f}, largest {largest:.4f} of 9 pairs"
    assert told in text
    assert replicates.compare(RECORDS, REPLICATES) == text


@pytest.mark.parametrize("key", ["order_sha256", "init_sha256"])
def test_runs_of_other_tokens_or_weights_are_no_replicates(tmp_path: Path, key: str) -> None:
    record = json.loads((REPLICATES / "nine_26m/nope-s10.json").read_bytes())
    record["result"][key] = "0" * 64
    (tmp_path / "nine_26m").mkdir()
    path = tmp_path / "nine_26m/nope-s10.json"
    path.write_text(canonical(record | {"sha256": digest(record)}), encoding="utf-8")
    with pytest.raises(ReportError, match="are not the same run twice"):
        replicates.compare(RECORDS, tmp_path)


def test_a_second_record_needs_a_first(tmp_path: Path) -> None:
    (tmp_path / "nine_26m").mkdir()
    shutil.copy(RECORDS / "nine_26m/nope-s10.json", tmp_path / "nine_26m")
    with pytest.raises(ReportError, match="has no first record of nine_26m/k_rope-s10"):
        replicates.compare(tmp_path, REPLICATES)
