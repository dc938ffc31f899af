"""Tests of the table as CSV, Markdown, LaTeX and plain text, against numbers by hand."""

import csv
import io
import math
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import stats
from support.reports import make_nine, make_run, report_of, table_rows

from rope_exp.report import tables
from rope_exp.report.command import write
from rope_exp.report.content import Report
from rope_exp.report.pairs import pairs_table
from rope_exp.report.sentences import OWN
from rope_exp.report.tables import csv_table, markdown, plain_table, tex_table

HEADER = (
    "group,pe,rotate,num_seeds,loss_mean,loss_sd,delta,delta_ci_low,delta_ci_high,p_holm,verdict,"
    "published_loss,published_delta"
)
BEHIND = (
    ",p_adjusted,family,delta_wide_low,delta_wide_high,p_equivalent"
    ",seeds_needed_low,seeds_needed_high"
)
OF_KIND = ",kind,params,cached,state"
ALONE = ",delta_ci_low_alone,delta_ci_high_alone,p_holm_alone,verdict_alone"
OF_TEXT = ",perplexity,bits_per_byte"


@pytest.fixture
def nine(tmp_path: Path) -> Report:
    make_nine(tmp_path, seeds=(0, 1, 2))
    return report_of(tmp_path)


def test_where_there_is_nothing_to_note_no_heading_says_so(
    nine: Report, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "\nNotes:\n" in markdown(nine)
    monkeypatch.setattr(tables, "notes", lambda _: [])
    assert "Notes:" not in markdown(nine)


def test_table_csv_has_its_columns_and_numbers_by_hand(tmp_path: Path) -> None:
    ours = {
        "qk_rope": [3.5, 3.6, 3.7],
        "vo_rope": [3.61, 3.68, 3.75],
        "qv_rope": [3.4, 3.9, 4.1],
    }
    for label, losses in ours.items():
        for seed, loss in enumerate(losses):
            pe = "pe.rotate=[q,v]" if label == "qv_rope" else label
            make_run(tmp_path / "runs", pe=pe, seed=seed, loss=loss)
    write(tmp_path / "runs", None, tmp_path)
    header = (tmp_path / "table.csv").read_text().splitlines()[0]
    assert header == HEADER + BEHIND + OF_KIND + ALONE + OF_TEXT

    rows = table_rows(tmp_path)
    assert list(rows) == ["qk_rope", "vo_rope", "qv_rope"]  # best first
    for label, losses in ours.items():
        row = rows[label]
        differences = np.array(losses) - np.array(ours["qk_rope"])
        assert (row["group"], row["num_seeds"]) == ("g", "3")
        assert float(row["loss_mean"]) == pytest.approx(np.mean(losses), abs=5.1e-7)
        assert float(row["loss_sd"]) == pytest.approx(np.std(losses, ddof=1), abs=5.1e-7)
        assert float(row["delta"]) == pytest.approx(np.mean(differences), abs=5.1e-7)

    assert [row["rotate"] for row in rows.values()] == ["qk", "vo", "qv"]
    vo = rows["vo_rope"]
    assert vo["delta"] == "+0.080000"
    assert (vo["published_loss"], vo["published_delta"]) == ("2.770000", "+0.058000")
    assert (rows["qv_rope"]["published_loss"], rows["qv_rope"]["published_delta"]) == ("", "")


SIZES = {"tokens": 1000, "text_bytes": 2000}


def test_losses_are_perplexity_and_bits_a_byte_too(tmp_path: Path) -> None:
    """With half as many tokens as bytes, a loss of ln 8 is 3 bits per token and 1.5 per byte."""
    corpus = {key: {"train": 9000, "validation": n} for key, n in SIZES.items()}
    for seed, loss in enumerate((math.log(8) - 0.1, math.log(8) + 0.1)):
        make_run(tmp_path, seed=seed, loss=loss, env={"corpus": corpus})
    report = report_of(tmp_path)
    [_, line] = csv_table(report).splitlines()
    assert line.endswith(",8.000000,1.500000")
    assert "| loss (mean) | perplexity | bits per byte |" in markdown(report)
    assert "| 2.0794 | 8.00 | 1.5000 |" in markdown(report)


def test_a_row_of_each_spelling(nine: Report) -> None:
    lines = {
        csv_table: "g,vo_rope,vo,3,3.771000,0.001000,+0.058000,+0.058000,+0.058000,0.000000,worse,"
        "2.770000,+0.058000,0.000000,36 pairs,+0.058000,+0.058000,1.000000,,,softmax,1328256,256,0,"
        "+0.058000,+0.058000,0.000000,worse,,",
        markdown: "| VO-RoPE | v o | 3 | 3.7710 | 0.0010 | +0.0580 | +0.0580 to +0.0580 | < 0.0001 "
        "| worse | 2.770 | +0.058 | 4 | 4 |",
        tex_table: r"VO-RoPE & v o & 3 & 3.7710 & 0.0010 & +0.0580 & +0.0580 to +0.0580 "
        r"& $<$ 0.0001 & worse & 2.770 & +0.058 & 4 & 4 \\",
    }
    for spelling, line in lines.items():
        assert line in spelling(nine).splitlines()
    words = "VO-RoPE 3 3.7710 0.0010 +0.0580 +0.0580 to +0.0580 worse +0.058"
    assert words.split() in [line.split() for line in plain_table(nine).splitlines()]


def test_the_reference_differs_from_itself_by_an_unsigned_0(nine: Report) -> None:
    line = "| QK-RoPE | q k | 3 | 3.7130 | 0.0010 | 0.0000 | — | — | — | 2.712 | 0.000 | 1 | 1 |"
    assert line in markdown(nine).splitlines()


def test_plain_columns_are_aligned(nine: Report) -> None:
    lines = plain_table(nine).splitlines()
    assert len({len(line) for line in lines}) == 1
    assert set(lines[1]) == {"-", " "}


def test_one_seed_claims_nothing_but_the_published_order(tmp_path: Path) -> None:
    make_nine(tmp_path)
    claims = [line for line in markdown(report_of(tmp_path)).splitlines() if " > " in line]
    assert claims == ['- Published order: QK ≈ QKVO > K ≈ VO > QKV > NoPE > Q/V/O (">" is better).']


def test_the_intervals_and_p_of_the_table_are_those_of_the_tests(tmp_path: Path) -> None:
    """One row is far noisier than the others, so the tests are paired, as scipy's are."""
    losses = {
        "qk_rope": [3.50, 3.52, 3.49, 3.51, 3.53],
        "vo_rope": [3.55, 3.56, 3.55, 3.55, 3.58],
        "nope": [3.60, 4.10, 3.20, 3.90, 3.40],
    }
    for pe, of_seeds in losses.items():
        for seed, loss in enumerate(of_seeds):
            make_run(tmp_path / "runs", pe=pe, seed=seed, loss=loss)
    write(tmp_path / "runs", None, tmp_path)
    row = table_rows(tmp_path)["vo_rope"]

    test = stats.ttest_rel(losses["vo_rope"], losses["qk_rope"])
    interval = test.confidence_interval()
    assert float(row["delta_ci_low"]) == pytest.approx(interval.low, abs=1e-6)
    assert float(row["delta_ci_high"]) == pytest.approx(interval.high, abs=1e-6)
    # Holm's rule doubles the smaller of two p-values.
    assert float(row["p_holm"]) == pytest.approx(2 * test.pvalue, abs=1e-6)
    assert row["verdict"] == "worse"
    assert table_rows(tmp_path)["nope"]["verdict"] == "open"

    # Nothing is pooled, so the last columns repeat the interval, and table.md has it once.
    for key in ("delta_ci_low", "delta_ci_high", "p_holm", "verdict"):
        assert row[f"{key}_alone"] == row[key]
    text = (tmp_path / "table.md").read_text(encoding="utf-8")
    assert OWN not in text
    assert "; no second interval is printed" in text


def test_the_pairs_own_interval_stands_beside(tmp_path: Path) -> None:
    """The references are scipy's paired t with Holm by hand, and the pooled t by float64 sums."""
    labels = ("qk_rope", "qkvo_rope", "vo_rope", "nope")
    losses_VS = np.random.default_rng(1).normal(scale=0.02, size=(4, 5))
    losses_VS += np.array([3.50, 3.44, 3.55, 3.60])[:, None]
    for label, of_seeds in zip(labels, losses_VS, strict=True):
        for seed, loss in enumerate(of_seeds):
            make_run(tmp_path / "runs", pe=label, seed=seed, loss=float(loss))
    write(tmp_path / "runs", None, tmp_path)
    rows = table_rows(tmp_path)

    tests = [stats.ttest_rel(of_seeds, losses_VS[0]) for of_seeds in losses_VS[1:]]
    p = np.array([test.pvalue for test in tests])
    order = np.argsort(p)
    adjusted = np.empty(3)
    adjusted[order] = np.minimum(1, np.maximum.accumulate(p[order] * (3, 2, 1)))

    # e_vs = x_vs - x_v. - x_.s + x_.. has (4 - 1)(5 - 1) degrees of freedom.
    residual_VS = losses_VS - losses_VS.mean(1, keepdims=True) - losses_VS.mean(0)
    residual_VS += losses_VS.mean()
    half = stats.t.ppf(0.975, 12) * np.sqrt((residual_VS**2).sum() / 12 * 2 / 5)

    text = (tmp_path / "table.md").read_text(encoding="utf-8")
    for label, test, p_holm, of_seeds in zip(
        labels[1:], tests, adjusted, losses_VS[1:], strict=True
    ):
        row = rows[label]
        own = test.confidence_interval()
        delta = (of_seeds - losses_VS[0]).mean()
        found = [float(row[f"{key}_alone"]) for key in ("delta_ci_low", "delta_ci_high", "p_holm")]
        assert found == pytest.approx([own.low, own.high, p_holm], abs=1e-6)
        word = "open" if p_holm >= 0.05 else "worse" if delta > 0 else "better"
        assert row["verdict_alone"] == word
        pooled = [float(row["delta_ci_low"]), float(row["delta_ci_high"])]
        assert pooled == pytest.approx([delta - half, delta + half], abs=1e-6)
        assert f"{own.low:+.4f} to {own.high:+.4f}" in text

    # A published relation has the opposite sign: the second's loss minus the first's.
    own = stats.ttest_rel(losses_VS[1], losses_VS[0]).confidence_interval()
    [line] = [line for line in text.splitlines() if line.startswith("| QK-RoPE ≈ QKVO-RoPE |")]
    assert f"{own.low:+.4f} to {own.high:+.4f}" in line


def test_a_verdict_that_hangs_on_pooling_is_marked(tmp_path: Path) -> None:
    """QK's losses are 0.05 apart, so QKVO's lead of 0.1 is open unless noise is pooled."""
    for seed, wobble in enumerate((-0.05, 0.0, 0.05)):
        make_run(tmp_path / "runs", seed=seed, loss=3.5 + wobble)
        make_run(tmp_path / "runs", pe="qkvo_rope", seed=seed, loss=3.4)
        make_run(tmp_path / "runs", pe="vo_rope", seed=seed, loss=3.8 + wobble / 2)
        make_run(tmp_path / "runs", pe="k_rope", seed=seed, loss=3.9 - wobble / 2)
    write(tmp_path / "runs", None, tmp_path)

    row = table_rows(tmp_path)["qkvo_rope"]
    assert (row["verdict"], row["verdict_alone"]) == ("better", "open")
    text = (tmp_path / "table.md").read_text(encoding="utf-8")
    assert "| better † |" in text
    [relation] = [line for line in text.splitlines() if line.startswith("| QK-RoPE ≈ QKVO-RoPE")]
    assert relation.endswith("| contradicted † |")
    assert r"better $\dagger$ &" in (tmp_path / "table.tex").read_text(encoding="utf-8")


def test_published_relations_stand_one_by_one(nine: Report) -> None:
    text = markdown(nine)
    assert text.count("| confirmed |") == 8
    assert "| NoPE > V-RoPE | NoPE > V-RoPE | +0.0610 |" in text


def test_a_row_that_lost_seeds_says_so_in_its_verdict(tmp_path: Path) -> None:
    for seed in range(3):
        make_run(tmp_path, seed=seed, loss=3.5 + 0.01 * seed)
        make_run(tmp_path, pe="nope", seed=seed, loss=3.8 + 0.011 * seed)
        lost = seed == 2
        loss = None if lost else 3.6 + 0.01 * seed
        result = {} if lost else None
        make_run(
            tmp_path, pe="vo_rope", seed=seed, loss=loss, steps=130 if lost else None, result=result
        )
    assert "| worse (1 diverged) |" in markdown(report_of(tmp_path))


def test_an_open_relation_says_what_would_settle_it(tmp_path: Path) -> None:
    for seed, (qk, qkvo) in enumerate([(3.50, 3.53), (3.51, 3.50), (3.52, 3.55)]):
        make_run(tmp_path, seed=seed, loss=qk)
        make_run(tmp_path, pe="qkvo_rope", seed=seed, loss=qkvo)
    report = report_of(tmp_path)
    text = markdown(report)
    assert "| QK-RoPE ≈ QKVO-RoPE | QK-RoPE ? QKVO-RoPE |" in text
    assert "in 4 of 5 cases; a difference may then still be below the margin |" in text

    [relation] = report.relations
    for seeds, told in (((4, 4), "1 more seed"), ((5, 9), "2 to 6 more seeds")):
        judged = replace(relation.judged, seeds_needed_low=seeds[0], seeds_needed_high=seeds[1])
        text = markdown(replace(report, relations=(replace(relation, judged=judged),)))
        assert f"| open; {told} would settle it in 4 of 5 cases" in text


def test_every_pair_stands_once_in_pairs_csv(nine: Report) -> None:
    lines = pairs_table(nine).splitlines()
    assert len(lines) == 1 + 36
    assert "k_rope,≈,vo_rope,3,0.001000,0.001000,0.001000," in "\n".join(lines)


def test_names_are_escaped_for_latex(tmp_path: Path) -> None:
    make_run(tmp_path)
    make_run(tmp_path, pe="pe.name=my_own", loss=3.6, overrides=["pe.base=500000"])
    text = tex_table(report_of(tmp_path))
    assert r"my\_own & q k & 1 & 3.6000 & --- & +0.1000 & --- & --- & 2 & --- \\" in text
    assert r"$\Delta$ to QK-RoPE" in text
    for line in (r"\toprule", r"\midrule", r"\bottomrule", r"\begin{tabular}{llrrrrrrrr}"):
        assert line in text.splitlines()


def test_a_departing_key_gives_a_name_and_no_published_loss(tmp_path: Path) -> None:
    make_run(tmp_path)
    make_run(tmp_path, pe="pe.base=500000", loss=3.4)
    report = report_of(tmp_path)
    assert "| QK-RoPE base500000 | q k | 1 | 3.4000 | — | -0.1000 | — |" in markdown(report)
    line = (
        "g,qk_rope-base500000,qk,1,3.400000,,-0.100000,,,,,,,,,,,,,,softmax,1328256,256,0,,,,,,\n"
    )
    assert line in csv_table(report)


def test_a_run_without_an_end_is_a_word_and_never_a_number(tmp_path: Path) -> None:
    make_run(tmp_path)
    make_run(tmp_path, pe="vo_rope", loss=None, steps=130, result={})
    make_run(tmp_path, pe="k_rope", loss=None, steps=250)
    make_run(tmp_path, pe="nope", loss=None, steps=0)
    report = report_of(tmp_path)
    lines = csv_table(report).splitlines()
    for label, word in (("vo_rope", "diverged"), ("k_rope", "unfinished"), ("nope", "unfinished")):
        [cells] = [line.split(",") for line in lines if f",{label}," in line]
        assert cells[3:11] == ["0", "", "", "", "", "", "", word]
    assert "| VO-RoPE | v o | 0 | diverged | — | — | 2.770 |" in markdown(report)


def test_another_factor_has_a_column_and_nothing_published(tmp_path: Path) -> None:
    """The factor's column comes after those of the test, which keep their places."""
    for lr, loss in (("0.001", 3.6), ("0.01", 3.5)):
        make_run(tmp_path, group=f"lr-{lr}", loss=loss, overrides=[f"optim.lr={lr}"])
    report = report_of(tmp_path, keys=("optim.lr",))
    header, best, worst = csv_table(report).splitlines()
    assert header == f"{HEADER}{BEHIND},optim.lr{OF_KIND}{ALONE}{OF_TEXT}"
    empty = "," * 14
    of_kind = "softmax,1328256,256,0,,,,,,"
    assert best == f"lr-0.01,qk_rope,qk,1,3.500000,,-0.100000{empty}0.01,{of_kind}"
    assert worst == f"lr-0.001,qk_rope,qk,1,3.600000,,0.000000{empty}0.001,{of_kind}"

    text = markdown(report)
    assert "| optim.lr | rotates | seeds | loss (mean) |" in text
    assert "| optim.lr=0.01 | q k | 1 | 3.5000 | — | -0.1000 | 1 |" in text
    assert "published" not in text.lower()


def test_a_minus_is_one_for_latex(tmp_path: Path) -> None:
    """A number's minus is set in math mode, and a hyphen within a name is kept."""
    for seed in (0, 1):
        make_run(tmp_path, seed=seed, loss=3.6 + 0.01 * seed)
        make_run(tmp_path, pe="vo_rope", seed=seed, loss=3.5 + 0.011 * seed)
    [line] = [text for text in tex_table(report_of(tmp_path)).splitlines() if "VO-RoPE" in text]
    assert " $-$0.0995 & $-$0.1059 to $-$0.0931 & " in line
    assert line.startswith("VO-RoPE & ")


def test_a_small_p_is_no_zero(tmp_path: Path) -> None:
    """The reference is scipy's p for differences of 0.1 nats that vary by less than 0.0001."""
    losses = np.array([[3.5, 3.51, 3.52, 3.53, 3.54], [3.6, 3.61001, 3.62003, 3.63002, 3.64004]])
    for pe, of_seeds in zip(("qk_rope", "vo_rope"), losses, strict=True):
        for seed, loss in enumerate(of_seeds):
            make_run(tmp_path, pe=pe, seed=seed, loss=float(loss))
    report = report_of(tmp_path)
    expected = stats.ttest_rel(*losses).pvalue
    for text, key in ((csv_table(report), "p_holm"), (pairs_table(report), "p")):
        *_, line = csv.DictReader(io.StringIO(text))
        assert float(line[key]) == pytest.approx(expected, rel=0.01)
        assert 0 < float(line[key]) < 5e-7


def test_the_latex_table_compiles(nine: Report, tmp_path: Path) -> None:
    """The table needs only booktabs, as its first line says, and no character is missing."""
    if shutil.which("pdflatex") is None:
        pytest.skip("there is no pdflatex here, which compiles the table")
    document = "\\documentclass{article}\\usepackage{booktabs}\\usepackage[landscape]{geometry}"
    document += f"\\begin{{document}}\\tiny\n{tex_table(nine)}\\end{{document}}\n"
    (tmp_path / "t.tex").write_text(document, encoding="utf-8")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "t.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:]
    assert (tmp_path / "t.pdf").stat().st_size > 0
    assert "Missing character" not in done.stdout
