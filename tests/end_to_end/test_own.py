"""End-to-end tests of a variant from a Python file outside the package."""

import shutil
from pathlib import Path

import pytest
import torch
from support.configs import TINY
from support.exported import read
from support.own import PULL
from support.runs import train

from rope_exp import load_run
from rope_exp.commands.export import main as export
from rope_exp.commands.generate import main as generate
from rope_exp.commands.report import main as report


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, corpus: Path, cache: Path) -> Path:
    """Return a folder with `my/pull.py`, a run of this variant, and a run of NoPE."""
    folder = tmp_path_factory.mktemp("own")
    (folder / "my" / "pe").mkdir(parents=True)
    (folder / "my" / "pull.py").write_text(PULL)
    (folder / "my" / "pe" / "pull.yaml").write_text("name: Pull\nrotate: []\ncode: pull.Pull\n")
    done = train(*command(corpus, cache), "-m", "pe=nope,pull", cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder


def command(corpus: Path, cache: Path) -> list[str]:
    data = [f"data.path={corpus}", "data.holdout_fraction=0.2", f"data.cache_dir={cache}"]
    return ["--config-dir", "my", *TINY, *data, "run.group=g"]


def test_it_is_in_one_table_with_ours_and_generates(
    trained: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(trained)
    assert report(["--group", "g", "--out", "out"]) == 0
    table = (trained / "out" / "table.md").read_text()
    assert "| Pull | — | 1 |" in table
    assert "| NoPE | — | 1 |" in table
    assert generate(["results/runs/g/pull/seed0", "a text", "--tokens", "4"]) == 0
    assert "a text" in capsys.readouterr().out


def test_a_run_of_a_changed_file_does_not_go_on(
    trained: Path, tmp_path: Path, corpus: Path, cache: Path
) -> None:
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    (tmp_path / "my/pull.py").write_text(PULL.replace("torch.ones(", "2 * torch.ones("))
    changed = train(*command(corpus, cache), "pe=pull", cwd=tmp_path)
    assert changed.returncode == 2
    assert "pe.code_sha256" in changed.stderr


def test_it_is_exported_with_its_class(trained: Path, tmp_path: Path) -> None:
    """In a process without rope_exp, the export gives our logits from a padded batch."""
    run, out = trained / "results/runs/g/pull/seed0", tmp_path / "out"
    assert export([str(run), str(out)]) == 0
    found = read(out, tmp_path)
    decoder, _ = load_run(run)
    # Only the first text is compared, because the second one is padded.
    with torch.no_grad():
        ours = decoder(torch.tensor([found["ids"][0]]))[0, -1]
    assert torch.allclose(torch.tensor(found["last"][0]), ours, rtol=0, atol=1e-5)


def test_a_mistake_ends_before_anything_is_written(
    tmp_path: Path, corpus: Path, cache: Path
) -> None:
    (tmp_path / "my" / "pe").mkdir(parents=True)
    (tmp_path / "my" / "pull.py").write_text(PULL.replace("kept[", "kept_of["))
    (tmp_path / "my" / "pe" / "pull.yaml").write_text("name: Pull\nrotate: []\ncode: pull.Pull\n")
    done = train(*command(corpus, cache), "pe=pull", cwd=tmp_path)
    assert done.returncode == 2
    assert "pe.code=pull.Pull: pull.py, line 15: NameError" in done.stderr
    assert 'key_BE = kept_of["position_BE"]' in done.stderr
    assert "softmax.py" not in done.stderr
    assert not (tmp_path / "results").exists()
