"""Tests of the command `report`, which writes tables and figures from run folders."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.refused import refused
from support.reports import make_run, sha256_of, table_rows

from rope_exp.__main__ import main
from rope_exp.commands.report import main as command
from rope_exp.commands.report import write
from rope_exp.errors import ConfigError, RunFolderError
from rope_exp.files import read_json, write_json
from rope_exp.report import write_all, write_files

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
    assert stdout == ""
    assert stderr[:7] == "error: "
    assert stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("key", "other"), [("torch", "9.0"), ("num_threads", 64)])
def test_a_mixed_block_is_refused_or_marked(tmp_path: Path, key: str, other: object) -> None:
    """As in a campaign: a difference within a seed could be that of the machines."""
    usual = {"torch": "2.13", "num_threads": 2, "world_size": 1}
    for seed in (0, 1, 2):
        make_run(tmp_path, seed=seed, env=usual, loss=3.5 + seed / 100)
        env = usual | ({key: other} if seed == 1 else {})
        make_run(tmp_path, pe="vo_rope", seed=seed, env=env, loss=3.4 + seed / 99)
    # These share no block with it, and a run that has not ended has nothing to compare.
    make_run(tmp_path, pe="nope", seed=2, env=usual)
    make_run(tmp_path, pe="k_rope", seed=2, env={**usual, key: other}, loss=None, steps=50)

    words = ["--runs", str(tmp_path), "--out", str(tmp_path / "out")]
    names = [f"{tmp_path}/g/{pe}/seed1" for pe in ("qk_rope", "vo_rope")]
    with refused(f"seed 1 of g has runs with {key} ", str(other), *names, "--allow-mixed"):
        command(words)
    assert not (tmp_path / "out").exists()
    assert command([*words, "--allow-mixed"]) == 0
    verdicts = {pe: row["verdict"] for pe, row in table_rows(tmp_path / "out").items()}
    assert verdicts["vo_rope"].endswith(" (mixed)")
    assert verdicts["qk_rope"] == "(mixed)"
    assert "(mixed)" not in verdicts["nope"] + verdicts["k_rope"]
    assert f"Runs of seed 1 differ in {key}: " in (tmp_path / "out" / "table.md").read_text()


@pytest.mark.parametrize(
    "words",
    [
        "--allow-mixed",
        "--reference vo_rope",
        "--group mine",
        "--runs mine",
        "--factors pe optim.lr",
    ],
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
        assert table_rows(Path("results", group))["qk_rope"]["group"] == group


@pytest.mark.parametrize("group", ["runs", "bench", "records"])
def test_a_group_with_a_name_of_results_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], group: str
) -> None:
    """Its table would mix with other files; in a folder that the user names, it would not."""
    monkeypatch.chdir(tmp_path)
    make_run(Path("results/runs"), group=group)
    before = sorted(tmp_path.rglob("*"))
    monkeypatch.setattr(sys, "argv", ["report.py", "--group", group])
    assert main("report") == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: --group={group}: must be none of README.md, bench, ")
    assert error.count("\n") == 1
    assert sorted(tmp_path.rglob("*")) == before

    assert command(["--group", group, "--out", "mine"]) == 0
    assert table_rows(Path("mine"))["qk_rope"]["group"] == group


def test_groups_whose_names_are_too_long_need_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for number in range(5):
        words = [f"optim.lr=0.00{number + 1}"]
        make_run(Path("results/runs"), group=f"{number}{'x' * 60}", overrides=words)
    with refused("--out: must be given: the names of 5 groups are too long", by=ConfigError):
        command(["--factors", "optim.lr", "--reference", "optim.lr=0.001"])
    assert [path.name for path in Path("results").iterdir()] == ["runs"]


def test_a_report_removes_only_what_it_wrote(tmp_path: Path) -> None:
    """Two seeds have pairs.csv and a forest, and one has neither.

    A file stays that the report did not write, or that the user changed since.
    """
    make_run(tmp_path / "runs", group="one")
    for seed in (0, 1):
        make_run(tmp_path / "runs", group="two", seed=seed)
        make_run(tmp_path / "runs", group="two", seed=seed, pe="vo_rope")
    out = tmp_path / "out"
    write(tmp_path / "runs", "two", out)
    (out / "figures/mine.svg").write_text("a figure of the user's")
    (out / "mine.txt").write_text("a note of the user's")
    first = {str(path.relative_to(out)) for path in out.rglob("*.*")}
    assert first > FILES | {"pairs.csv", "mine.txt", "figures/mine.svg"}

    write(tmp_path / "runs", "one", out)
    second = {str(path.relative_to(out)) for path in out.rglob("*.*")}
    assert first - second == {"pairs.csv", "figures/forest.svg"}
    assert second < first

    write(tmp_path / "runs", "two", out)
    (out / "pairs.csv").write_text("edited")
    write(tmp_path / "runs", "one", out)
    assert (out / "pairs.csv").read_text() == "edited"
    assert (out / "mine.txt").read_text() == "a note of the user's"


def test_an_emptied_folder_of_a_table_goes_with_its_files(tmp_path: Path) -> None:
    write_all(tmp_path, {"table.md": b"1", "level/figures/grid.svg": b"2"})
    write_all(tmp_path, {"table.md": b"1"})
    assert sorted(path.name for path in tmp_path.iterdir()) == [".written.json", "table.md"]


@pytest.mark.parametrize("content", ["{", '{"files": ["table.md"]}', '{"files": {"a": 1}}'])
def test_a_damaged_listing_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / ".written.json").write_text(content)
    with refused(".written.json"):
        write_all(tmp_path, {"table.md": b"1"})
    assert not (tmp_path / "table.md").exists()


def test_a_listing_removes_nothing_outside_its_folder(tmp_path: Path) -> None:
    """Even if someone edited it."""
    outside = tmp_path / "mine.txt"
    outside.write_text("mine")
    digest = sha256_of("mine")
    (tmp_path / "out").mkdir()
    write_json(tmp_path / "out/.written.json", {"files": {"../mine.txt": digest}})
    write_all(tmp_path / "out", {"table.md": b"1"})
    assert outside.exists()


@pytest.mark.parametrize("name", ["../table.md", "/table.md", "level/../../table.md", "link/a.md"])
def test_nothing_is_written_outside_the_folder(tmp_path: Path, name: str) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "link").symlink_to(tmp_path)
    for write_them in (write_all, write_files):
        with refused("would be written outside", str(out), by=RunFolderError):
            write_them(out, {"table.csv": b"1", name: b"2"})
    assert [path.name for path in out.iterdir()] == ["link"]


def test_of_two_reports_in_one_folder_one_is_whole(tmp_path: Path) -> None:
    """Each removes the other's files, and none is left of which no list tells."""
    tables = [
        {f"{name}{number}.csv": name.encode() for number in range(4)} | {"table.md": name.encode()}
        for name in ("first", "second")
    ]

    def write_often(files: dict[str, bytes]) -> None:
        for _ in range(20):
            write_all(tmp_path / "out", files)

    with ThreadPoolExecutor() as pool:
        [*pool.map(write_often, tables)]
    written = {path.name: path.read_bytes() for path in (tmp_path / "out").glob("[!.]*")}
    assert written in tables
    listed = read_json(tmp_path / "out/.written.json")["files"]
    assert listed.keys() == written.keys()


def test_text_of_a_run_is_neither_markup_nor_control(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A folder from somebody else may hold any text in env.json, and have any name."""
    hostile = "<script>alert(1)</script>\x1b[2J\u202e"
    runs = tmp_path / "runs"
    make_run(runs, env={"marks": [hostile]})
    make_run(runs, pe="vo_rope", loss=3.25)
    (runs / "g" / "nope\x1b[2J" / "seed0").mkdir(parents=True)
    (runs / "g").rename(runs / "g\x1b[2J")
    assert command(["--runs", str(runs), "--out", str(tmp_path / "out")]) == 0
    printed = capsys.readouterr().out
    table = (tmp_path / "out/table.md").read_text()
    page = (tmp_path / "out/report.html").read_text()
    svg = "".join(path.read_text() for path in (tmp_path / "out/figures").glob("*.svg"))
    assert r"g\x1b[2J" in svg
    for text in (printed, table, page, svg):
        assert "\x1b" not in text
        assert "\u202e" not in text
    assert "<script>" not in table + page
    assert r"&lt;script>alert(1)&lt;/script>\x1b[2J\u202e" in table
