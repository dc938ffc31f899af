"""Tests of the table of deviations from the laws, against what `certificate` measures."""

import sys
from pathlib import Path

import laws
import pytest
from support.configs import REPOSITORY

from rope_exp.config.variants import SUBSETS, subset_name
from rope_exp.model.laws import TOLERANCE, certificate, expected_class
from rope_exp.plan.compose import CONFIGS, run_config

LAW_OF = {subset_name(sites): expected_class(sites) for sites in SUBSETS}


def run(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["laws.py", *words])
    return laws.main()


def tables(page: str) -> list[list[dict[str, str]]]:
    """Return the rows of each Markdown table of a page, by column."""
    found = []
    for block in page.split("\n\n"):
        if not block.startswith("|"):
            continue
        header, _, *rows = [
            [cell.strip() for cell in line.strip("|").split("|")] for line in block.splitlines()
        ]
        found.append([dict(zip(header, row, strict=True)) for row in rows])
    return found


def test_a_kind_stands_there_with_every_subset_that_it_allows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A kind's row has its largest deviation, and the smallest from a law that does not hold."""
    out = tmp_path / "laws.md"
    assert run(monkeypatch, "attn=mla", "--out", str(out)) == 0
    [kinds, subsets] = tables(out.read_text(encoding="utf-8"))
    assert capsys.readouterr().out.splitlines()[-1] in out.read_text(encoding="utf-8")

    config = run_config(["attn=mla", "pe=q_rope"])
    measured = certificate(config.model, config.pe, config.attn)
    assert [row["rotates"] for row in subsets] == ["NoPE", "Q-RoPE", "K-RoPE", "QK-RoPE"]
    assert [row["law"] for row in subsets] == ["invariant", "neither", "neither", "invariant"]
    assert subsets[1]["another law"] == f"{measured['max_deviation']['invariant']:.1e}"
    for name, deviation in measured["formulas"].items():
        assert subsets[1][name] == f"{deviation:.1e}"

    [worst] = kinds
    own = [float(row["its deviation"]) for row in subsets if row["its deviation"]]
    assert (worst["subsets"], float(worst["its law, at most"])) == ("4", max(own))
    assert float(worst["absorbed"]) == max(float(row["absorbed"]) for row in subsets)
    others = [float(row["another law"]) for row in subsets if row["another law"]]
    assert float(worst["another law, at least"]) == min(others)


def test_a_mistake_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "attn=nosuch", "--out", str(tmp_path / "laws.md")) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: attn=nosuch: there is no such choice")
    assert said.count("\n") == 1


def test_the_committed_table_has_every_kind() -> None:
    """The law measured for each subset is the one that the mathematics predicts."""
    page = (REPOSITORY / laws.OUT).read_text(encoding="utf-8")
    [kinds, subsets] = tables(page)
    listed = {row["kind"].strip("`") for row in kinds}
    assert listed == {*laws.FORMS, *(f"attn={path.stem}" for path in (CONFIGS / "attn").iterdir())}
    for row in subsets:
        assert row["law"] == LAW_OF[row["rotates"]]
        assert float(row["its deviation"] or 0) < 100 * TOLERANCE
    assert {row["kind"].strip("`") for row in subsets} == listed
