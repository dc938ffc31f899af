"""Tests that numbers of a table are those of independent formulas, and that LaTeX accepts it."""

import csv
import io
import math
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from scipy import stats
from support.records import at_seed, ended_at, report_on, runs_of

from rope_exp.notes.files import files
from rope_exp.report import Report, build, table_csv, table_md

ROWS = ("qk_rope", "qkvo_rope", "vo_rope", "nope")


def with_losses(losses_VS: np.ndarray) -> Report:
    """Return the report on recorded runs as if they had ended at these losses."""
    ended = []
    for run in runs_of("english", *ROWS[: len(losses_VS)], seeds=(0,)):
        for seed, loss in enumerate(losses_VS[ROWS.index(run.row)]):
            ended.append(ended_at(at_seed(run, seed), float(loss)))
    return build(ended, ["pe"])


def lines_of(text: str) -> dict[str, dict[str, str]]:
    return {line["pe"]: line for line in csv.DictReader(io.StringIO(text))}


def test_the_test_is_paired() -> None:
    """The reference is scipy's paired t, with Holm by hand."""
    losses_VS = np.random.default_rng(1).normal(scale=0.02, size=(4, 5))
    losses_VS += np.array([3.50, 3.44, 3.55, 3.60])[:, None]
    report = with_losses(losses_VS)
    rows = lines_of(table_csv(report))

    tests = [stats.ttest_rel(of_seeds, losses_VS[0]) for of_seeds in losses_VS[1:]]
    p = np.array([test.pvalue for test in tests])
    order = np.argsort(p)
    adjusted = np.empty(3)
    adjusted[order] = np.minimum(1, np.maximum.accumulate(p[order] * (3, 2, 1)))

    text = table_md(report)
    for label, test, p_holm, of_seeds in zip(ROWS[1:], tests, adjusted, losses_VS[1:], strict=True):
        row = rows[label]
        own = test.confidence_interval()
        for key, expected in {
            "delta": (of_seeds - losses_VS[0]).mean(),
            "delta_ci_low": own.low,
            "delta_ci_high": own.high,
            "p_holm": p_holm,
            "loss_mean": of_seeds.mean(),
            "loss_sd": of_seeds.std(ddof=1),
        }.items():
            assert float(row[key]) == pytest.approx(expected, abs=1e-6), key
        assert f"{own.low:+.4f} to {own.high:+.4f}" in text

    # A published relation has the opposite sign: the second's loss minus the first's.
    own = stats.ttest_rel(losses_VS[1], losses_VS[0]).confidence_interval()
    [line] = [line for line in text.splitlines() if line.startswith("| QK-RoPE ≈ QKVO-RoPE |")]
    assert f"{own.low:+.4f} to {own.high:+.4f}" in line


def test_a_small_p_is_no_zero() -> None:
    """The reference is scipy's p for differences of 0.1 nats that vary by less than 0.0001."""
    losses_VS = np.array([[3.5, 3.51, 3.52, 3.53, 3.54], [3.6, 3.61001, 3.62003, 3.63002, 3.64004]])
    report = with_losses(losses_VS)
    expected = stats.ttest_rel(*losses_VS).pvalue
    for text, key in ((table_csv(report), "p_holm"), (files(report)["pairs.csv"], "p")):
        *_, line = csv.DictReader(io.StringIO(text))
        assert float(line[key]) == pytest.approx(expected, rel=0.01)
        assert 0 < float(line[key]) < 5e-7


def test_losses_are_perplexity_and_bits_a_byte_too() -> None:
    [run] = runs_of("english", "qk_rope", seeds=(0,))
    corpus = run.env["corpus"]
    share = corpus["tokens"]["validation"] / corpus["text_bytes"]["validation"]
    row = lines_of(table_csv(build([ended_at(run, math.log(8))], ["pe"])))["qk_rope"]
    assert float(row["perplexity"]) == pytest.approx(8)
    assert float(row["bits_per_byte"]) == pytest.approx(3 * share, abs=1e-6)


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="pdflatex compiles the table")
def test_the_latex_table_compiles(tmp_path: Path) -> None:
    """The table needs only booktabs, as its first line says, and no character is missing."""
    table = files(report_on("english"))["table.tex"]
    document = "\\documentclass{article}\\usepackage{booktabs}\\usepackage[landscape]{geometry}"
    document += f"\\begin{{document}}\\tiny\n{table}\\end{{document}}\n"
    (tmp_path / "t.tex").write_text(document, encoding="utf-8")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "t.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:]
    assert "Missing character" not in done.stdout
