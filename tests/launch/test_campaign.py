"""Tests of campaigns: cells with a record do not run again, messages, and refusals."""

import platform
import re
import shutil
from pathlib import Path

import pytest
import yaml
from support.campaigns import FIXED, RECORDS, RUNS, load, progress, records_of
from support.refused import refused

from rope_exp import compose, sweep
from rope_exp.campaign import campaign as campaigns
from rope_exp.campaign.campaign import Progress, run_campaign
from rope_exp.campaign.records import canonical, digest
from rope_exp.commands.campaign import main as command
from rope_exp.commands.campaign import run_cells
from rope_exp.errors import ConfigError
from rope_exp.files import read_json, write_json

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def requested(monkeypatch: pytest.MonkeyPatch) -> list[Progress]:
    """Return the campaigns that commands start; they do not run."""
    campaigns_started: list[Progress] = []

    def run(campaign: Progress) -> int:
        campaigns_started.append(campaign)
        return 0

    monkeypatch.setattr(campaigns, "run_campaign", run)
    return campaigns_started


@pytest.fixture
def trained(home: Path, recorded: Path) -> Path:
    """Return a folder whose runs are done, but have no records."""
    shutil.copytree(recorded / RUNS, home / RUNS)
    return home


def test_a_fresh_clone_with_all_records_runs_nothing(clone: Path, capsys: Capture) -> None:
    """It needs no corpus either. Runs had the campaign's threads, not the environment's."""
    assert [path.name[:2] for path in records_of(clone)] == ["qk", "vo"]
    assert all(read_json(path)["env"]["num_threads"] == 1 for path in records_of(clone))
    (clone / "corpus").unlink()
    assert run_campaign(progress(clone)) == 0
    assert not (clone / RUNS).exists()
    assert "mine: 2 of 2 cells have a record\n" in capsys.readouterr().err


def test_a_run_without_a_record_is_not_run_again(
    trained: Path, recorded: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a kill between a run's end and its record, the record still has the same bytes."""
    monkeypatch.setattr(sweep, "_start_waiting", lambda *_: pytest.fail("started"))
    assert run_campaign(progress(trained)) == 0
    for mine, other in zip(records_of(trained), records_of(recorded), strict=True):
        assert mine.read_bytes() == other.read_bytes()


def cut_last_row(home: Path) -> Path:
    """Remove the last row of the first run's metrics, and return its folder."""
    [metrics] = (home / RUNS).glob("mine/qk*/metrics.jsonl")
    metrics.write_bytes(b"".join(metrics.read_bytes().splitlines(keepends=True)[:-1]))
    return metrics.parent


def test_the_list_tells_how_far_a_begun_cell_is(trained: Path) -> None:
    """The second cell's run is done, but it has no record yet."""
    (cut_last_row(trained) / "result.json").unlink()
    first, second = progress(trained).lines({})[1:3]
    assert re.search(r"  qk-\S+  left; begun here, step [1-9]\d* of \d+$", first)
    assert re.search(r"  vo-\S+  left; begun here, step (\d+) of \1$", second)


def test_one_cell_that_cannot_be_recorded_stops_no_other(trained: Path, capsys: Capture) -> None:
    """Its metrics lack the last row. A message names the cell and its log; the cell is left."""
    cut_last_row(trained)
    assert run_campaign(progress(trained)) == 1
    assert [path.name[:2] for path in records_of(trained)] == ["vo"]
    pattern = r"^qk-\S+: failed \(exit code 2\), see \S+/log.txt: .*metrics.jsonl"
    assert re.search(pattern, capsys.readouterr().err, re.M)
    assert len(progress(trained).left) == 1


def test_a_record_that_comes_meanwhile_stays(
    trained: Path, recorded: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    """A pull brings one whole and one broken record; the other machine took longer."""
    mine = progress(trained)
    whole, broken = [trained / RECORDS / "mine" / path.name for path in records_of(recorded)]
    values = read_json(records_of(recorded)[0])
    values["result"]["wall_s"] += 1000.0
    whole.parent.mkdir(parents=True)
    whole.write_text(canonical({**values, "sha256": digest(values)}))
    broken.write_text("<<<<<<< HEAD")
    before = whole.read_bytes()

    monkeypatch.setattr(sweep, "_start_waiting", lambda *_: pytest.fail("started"))
    assert run_campaign(mine) == 1
    assert whole.read_bytes() == before
    assert broken.read_text() == "<<<<<<< HEAD"
    assert [run.result["wall_s"] > 1000 for run in mine.done.values()] == [True]
    assert re.search(r"^vo-\S+: failed .*cannot be read", capsys.readouterr().err, re.M)


def test_a_cell_that_diverged_is_done(trained: Path, capsys: Capture) -> None:
    """It has a record, so every start exits with 0, and each start logs that it diverged."""
    [result] = (trained / RUNS).glob("mine/qk*/result.json")
    values = read_json(result)
    # A run that diverged has no probes.
    del values["probes_sha256"]
    (result.parent / "probes.json").unlink()
    write_json(result, values | {"status": "diverged", "val/loss": None, "diverged_step": 61})

    for _ in range(2):
        assert run_campaign(progress(trained)) == 0
        assert re.search(r"^(mine: diverged, .*)?qk-", capsys.readouterr().err, re.M)
    assert "mine: diverged, and so done: qk-" in "\n".join(progress(trained).lines({}))


def test_the_cells_of_a_cpu_run_on_gpus(
    clone: Path, requested: list[Progress], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two GPUs run 14 cells each; a cell trained on the CPU stays done."""
    monkeypatch.setattr(compose, "gpus", lambda: ["one", "other"])
    records_of(clone)[0].unlink()
    assert command(["mine", "--config-dir", str(clone), "--on-gpus", "14"]) == 0
    [cell] = requested[0].left
    settled = compose.resolve(cell.config)
    assert settled.launch.device == "cuda"
    assert settled.launch.max_parallel == 28
    assert settled.affecting_values == progress(clone).left[0].config.affecting_values
    assert len(requested[0].done) == 1


def test_a_campaign_may_exceed_the_memory(clone: Path, requested: list[Progress]) -> None:
    """Its command says so, here and on a node, whose job runs some of the cells."""
    for record in records_of(clone):
        record.unlink()
    words = ["mine", "--config-dir", str(clone)]
    assert command([*words, "launch.exceed_memory=true"]) == 0
    assert command(words) == 0
    names = [cell.name for cell in requested[0].left]
    for exceed_memory in (True, None):
        run_cells("mine", clone, Path("records"), 1, names[:1], exceed_memory=exceed_memory)
    exceeding = [mine.left[0].config.launch.exceed_memory for mine in requested]
    assert exceeding == [True, False, True, False]

    with refused("--hours=1.0: is for a campaign that runs here"):
        command([*words, "launch.exceed_memory=true", "launch=slurm_local", "--hours", "1"])


def test_what_is_left_is_said_with_the_time_that_it_takes(clone: Path) -> None:
    """One of two equal runs took 90 s. A renamed row's old record, which reports read, is named."""
    old = records_of(clone)[0]
    shutil.copy(old, old.with_name("old-s3.json"))
    half = progress(clone)
    lines = half.lines({})
    assert len(lines) == 5
    assert lines[3].endswith("holds records of no cell, which reports read: old-s3")
    assert all(re.fullmatch(r"  \S+  finished \d\.\d{4}, \d+ s", line) for line in lines[1:3])

    del half.done[half.campaign.cells[0].name]
    half.done[half.campaign.cells[1].name].result["wall_s"] = 90.0
    assert half.summary().endswith("; 1 are left, about 0:01:30 with 1 at a time")


def test_records_survive_a_power_cut(trained: Path, synced: list[int]) -> None:
    """Every new file must be synced, and every folder that holds a new name."""
    assert run_campaign(progress(trained)) == 0
    top = trained / RECORDS
    made = [top.parent, top, *top.rglob("*")]
    assert len(made) > 4
    assert [path for path in made if path.stat().st_ino not in synced] == []


def test_a_tree_whose_code_was_changed_is_refused(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A record must name the commit that made it. Nothing is written."""
    monkeypatch.setattr(campaigns, "git_state", lambda _: {"commit": "0" * 40, "dirty": True})
    with refused("campaign=mine", "commit, or run it in a clean worktree", by=ConfigError):
        run_campaign(progress(home))
    assert not (home / "results").exists()


def test_another_python_has_another_embedded_corpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stdlib corpus is Python's own library, whose text differs between patch versions."""
    monkeypatch.setattr(campaigns, "git_state", lambda _: None)
    words = [word for word in FIXED if not word.startswith("data")]
    here = platform.python_version()
    with refused(f"python={here}", "reads the library of Python 3.0.1", by=ConfigError):
        campaigns.check_here(Progress(load(tmp_path, fixed=words, python="3.0.1"), RECORDS))
    campaigns.check_here(Progress(load(tmp_path, fixed=words, python=here), RECORDS))


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("train.num_steps=61", "train.num_steps: 60 -> 61"),
        ("launch.num_threads=2", "launch.num_threads: 1 -> 2"),
        ("train.probes=[windows]", 'train.probes: ["windows", "shift"] -> ["windows"]'),
    ],
)
def test_a_record_of_another_config_is_refused(clone: Path, word: str, said: str) -> None:
    """Rounding depends on threads, and a record holds probes, but no hash covers these keys."""
    path = clone / "campaign" / "mine.yaml"
    values = yaml.safe_load(path.read_text())
    path.write_text(yaml.safe_dump(values | {"fixed": [*values["fixed"], word]}))
    with refused("results/records/mine/qk", "is a record of another config", said, by=ConfigError):
        progress(clone)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "usage: the following arguments are required: NAME"),
        (["mine", "--on-gpus", "0"], "--on-gpus=0: must be"),
        (["mine", "--on-gpus", "2"], "launch.device=cuda: this machine shows no GPU"),
        (["mine"], "start it without a launcher"),
        (["yours"], "campaign=yours: there is no such campaign"),
        (["mine", "seed=3"], "seed: must be launch, "),
        (["mine", "launch=slurm", "--hours", "1"], "--hours=1.0: is for a campaign that runs here"),
    ],
    ids=" ".join,
)
def test_a_mistake_of_the_command_line(
    home: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], said: str
) -> None:
    if words == ["mine"]:
        monkeypatch.setenv("RANK", "0")
    with refused(said, by=ConfigError):
        command([*words, "--config-dir", str(home)])
    assert not (home / "results").exists()
