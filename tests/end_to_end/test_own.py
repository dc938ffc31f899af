"""End-to-end tests of a variant from a Python file outside the package."""

from pathlib import Path

import pytest
from support.configs import TINY
from support.own import PULL
from support.refused import refused
from support.runs import train

from rope_exp import load_run
from rope_exp.commands.export import main as export
from rope_exp.commands.generate import main as generate
from rope_exp.commands.report import main as report
from rope_exp.compose import run_config
from rope_exp.init_from import with_weights
from rope_exp.sweep import dispatch


@pytest.fixture
def command(corpus: Path, cache: Path) -> list[str]:
    data = [f"data.path={corpus}", "data.holdout_fraction=0.2", f"data.cache_dir={cache}"]
    return ["--config-dir", "my", *TINY, *data, "run.group=g"]


def write_variant(folder: Path, text: str) -> None:
    (folder / "my" / "pe").mkdir(parents=True)
    (folder / "my" / "pull.py").write_text(text)
    (folder / "my" / "pe" / "pull.yaml").write_text("name: Pull\nrotate: []\ncode: pull.Pull\n")


def test_it_is_in_one_table_with_ours_and_generates(
    tmp_path: Path,
    command: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A run of a file that has changed does not go on."""
    monkeypatch.chdir(tmp_path)
    write_variant(tmp_path, PULL)
    done = train(*command, "-m", "pe=nope,pull", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert report(["--group", "g", "--out", "out"]) == 0
    table = Path("out/table.md").read_text()
    assert "| Pull | — | 1 |" in table
    assert "| NoPE | — | 1 |" in table
    assert generate(["results/runs/g/pull/seed0", "a text", "--tokens", "4"]) == 0
    assert "a text" in capsys.readouterr().out

    # A stranger's run executes nothing, also behind a link in the user's own results.
    Path("results/runs/g").rename("strangers")
    Path("results/runs/g").symlink_to(Path("strangers").absolute())
    for folder in ("strangers/pull/seed0", "results/runs/g/pull/seed0"):
        with refused("pe.code=pull.Pull", folder, "would be executed", "--trust-code"):
            generate([folder, "a text"])
        with refused("pe.code=pull.Pull", folder, "would be executed", "--trust-code"):
            export([folder, "exported"])
    assert not Path("exported").exists()
    assert generate(["strangers/pull/seed0", "a text", "--tokens", "4", "--trust-code"]) == 0
    assert export(["strangers/pull/seed0", "exported", "--trust-code"]) == 0
    assert load_run("strangers/nope/seed0")[0].training is False

    # Weights of a stranger's run are taken with code that the user has, and with no other.
    origin = [*command[2:], "run.init_from=strangers/pull/seed0", "run.dir=next"]
    assert with_weights(run_config([*origin, "pe=pull"], Path("my"))).init_weights is not None
    with refused("run.init_from=strangers/pull/seed0", "pe.code=pull.Pull", "run.trust_code=true"):
        with_weights(run_config([*origin, "pe=nope"]))

    # What is allowed at the start is allowed to the processes, and asked no more once it is begun.
    trusting = [*origin, "pe=nope", "run.trust_code=true"]
    done = train(*command[:2], *trusting, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "begins with step 6 of strangers/pull/seed0" in done.stderr
    Path("next/result.json").unlink()
    done = train(*command[:2], *origin, "pe=nope", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "resumes from step" in done.stderr

    Path("results/runs/g").unlink()
    Path("strangers").rename("results/runs/g")
    Path("my/pull.py").write_text(PULL.replace("torch.ones(", "2 * torch.ones("))
    with refused("pe.code_sha256"):
        dispatch([run_config([*command[2:], "pe=pull"], Path("my"))], [""])


def test_a_mistake_ends_before_anything_is_written(tmp_path: Path, command: list[str]) -> None:
    write_variant(tmp_path, PULL.replace("kept[", "kept_of["))
    done = train(*command, "pe=pull", cwd=tmp_path)
    assert done.returncode == 2
    assert "pe.code=pull.Pull: pull.py, line 15: NameError" in done.stderr
    assert 'key_BE = kept_of["position_BE"]' in done.stderr
    assert "softmax.py" not in done.stderr
    assert not (tmp_path / "results").exists()
