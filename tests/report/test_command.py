"""Tests of the command `report`, which writes tables and figures from run folders."""

import subprocess
import sys
from pathlib import Path

import pytest
from support.refused import refused
from support.reports import make_run, sha256_of, table_rows

from rope_exp.__main__ import main
from rope_exp.commands.report import main as command
from rope_exp.commands.report import write
from rope_exp.errors import ConfigError

FILES = {"table.md", "table.csv", "table.tex", "figures/curves.svg", "figures/forest.svg"}


def test_help_waits_for_neither_torch_nor_altair() -> None:
    """Each takes a second or more to import, and help needs none."""
    heavy = "{'torch', 'altair'}"
    script = f"import sys, rope_exp.commands.report; sys.exit(not {heavy}.isdisjoint(sys.modules))"
    subprocess.run([sys.executable, "-c", script], check=True)


def test_tables_and_figures_are_written_and_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for pe in ("qk_rope", "nope"):
        make_run(tmp_path / "runs", pe=pe)
    words = ["--runs", str(tmp_path / "runs"), "--out", str(tmp_path / "out")]
    assert command(words) == 0
    stdout = capsys.readouterr().out
    # Only tables of variants have a grid.
    for name in FILES | {"figures/grid.svg"}:
        assert str(tmp_path / "out" / name) in stdout
        assert (tmp_path / "out" / name).stat().st_size > 0
    assert "One seed: no difference can be tested." in stdout


def test_a_refusal_exits_2_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make_run(tmp_path / "runs")
    make_run(tmp_path / "runs", pe="vo_rope", result={"init_sha256": sha256_of("other")})
    words = ["--runs", str(tmp_path / "runs"), "--out", str(tmp_path / "out")]
    monkeypatch.setattr(sys, "argv", ["report.py", *words])
    assert main("report") == 2
    stdout, stderr = capsys.readouterr()
    assert (stdout, stderr[:7], stderr.count("\n")) == ("", "error: ", 1)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "words", ["--reference vo_rope", "--group mine", "--runs mine", "--factors pe optim.lr"]
)
def test_a_flag_of_runs_is_refused_beside_a_campaign(words: str) -> None:
    """Such a flag was once ignored, so the tables were not those that were asked for."""
    with refused(words.split()[0], "and --campaign takes records", by=ConfigError):
        command(["--campaign", "noise", *words.split()])


def test_a_sweep_of_learning_rates_end_to_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each learning rate is its own group, and `--factors` compares across groups."""
    for lr, loss in (("0.001", 3.6), ("0.01", 3.5)):
        overrides = [f"optim.lr={lr}"]
        make_run(tmp_path / "runs", group=f"lr-{lr}", loss=loss, overrides=overrides)
    make_run(tmp_path / "runs", group="other")

    out = tmp_path / "out"
    wanted = ["--group", "lr-*", "--factors", "optim.lr", "--reference", "optim.lr=0.01"]
    assert command(["--runs", str(tmp_path / "runs"), "--out", str(out), *wanted]) == 0
    table = capsys.readouterr().out
    assert all(word in table for word in ("optim.lr=0.001", "Δ to optim.lr=0.01", "+0.1000"))
    written = {str(path.relative_to(out)) for path in out.rglob("*.*")}
    assert written == FILES | {"report.html", "rates.md", ".written.json"}
    assert "| QK-RoPE | 1 | 3.5000 | +0.1000 (1) | 0.01" in (out / "rates.md").read_text()


def test_a_file_that_the_system_refuses_is_a_refusal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_run(tmp_path / "runs")

    def broken(*_: object) -> None:
        raise PermissionError(13, "Permission denied", "config.yaml")

    monkeypatch.setattr("rope_exp.folder.read_config", broken)
    with refused("Permission denied: 'config.yaml'"):
        write(tmp_path / "runs", None, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_table_is_of_the_group_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By default in a folder of its own; 007 is a group's name."""
    monkeypatch.chdir(tmp_path)
    for group in ("007", "large"):
        make_run(Path("results/runs"), group=group)
    for group in ("007", "large"):
        assert command(["--group", group]) == 0
        assert table_rows(Path("out", group))["qk_rope"]["group"] == group


def test_files_of_the_last_table_are_removed(tmp_path: Path) -> None:
    """Two seeds have pairs.csv and one has none; what the report did not write stays."""
    for group, seeds in (("two", (0, 1)), ("one", (0,))):
        for pe in ("qk_rope", "vo_rope"):
            for seed in seeds:
                make_run(tmp_path / "runs", pe=pe, seed=seed, group=group)
    out = tmp_path / "out"
    for group, has_pairs in (("two", True), ("one", False)):
        write(tmp_path / "runs", group, out)
        (out / "mine.txt").touch()
        assert (out / "pairs.csv").exists() == has_pairs
    assert (out / "mine.txt").exists()
