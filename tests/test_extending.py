"""Tests that the examples of docs/extending.md run when they are pasted."""

import re
import shutil
from pathlib import Path

import pytest
from support.command import command, in_a_process, write
from support.configs import RECORDED, REPOSITORY, TINY

from rope_exp.commands.campaign import main as campaign
from rope_exp.commands.generate import main as generate
from rope_exp.compose import run_config

PAGE = (REPOSITORY / "docs" / "extending.md").read_text(encoding="utf-8")
# A line names the file of the example below it.
FILE = re.compile(r"`((?:\w+/)+\w+\.(?:py|yaml))`:\n\n((?:    .*\n|\n)+)")
REPLACED = re.compile(r"replace the line with the same beginning:\n\n    (.*)\n")
INSERTED = re.compile(r"(Below|Above) `([^`]+)`:\n\n    (.*)\n")

# A process that trains by itself, without another that starts it.
ALONE = {"RANK": "0", "OMP_NUM_THREADS": "1"}


def examples() -> dict[str, str]:
    """Return the page's files by their paths in a checkout."""
    files = {}
    for name, block in FILE.findall(PAGE):
        inside = name if name.startswith(("my/", "configs/")) else f"rope_exp/{name}"
        files[inside] = re.sub("^    ", "", block.strip("\n"), flags=re.MULTILINE) + "\n"
    return files


def paste_lines(package: Path) -> None:
    """Replace and insert the single lines that the page shows."""
    sections = package / "sections.py"
    text = sections.read_text(encoding="utf-8")
    for line in REPLACED.findall(PAGE):
        begin = line.partition(" ")[0]
        text, count = re.subn(rf"^( *){begin} .*$", rf"\g<1>{line}", text, flags=re.MULTILINE)
        assert count == 1, line
    sections.write_text(text, encoding="utf-8")

    for place, anchor, line in INSERTED.findall(PAGE):
        count = 0
        for path in (package / "stats.py", package / "report.py"):
            lines = path.read_text(encoding="utf-8").splitlines()
            numbers = [i for i, old in enumerate(lines) if old.strip().startswith(anchor)]
            count += len(numbers)
            for number in numbers:
                indent = lines[number].partition(anchor)[0]
                lines.insert(number + (place == "Below"), indent + line)
            path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        assert count == 1, anchor


def test_the_files_of_a_folder_of_yours_run(
    tmp_path: Path,
    corpus: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """An encoding, a corpus and a size train together; a campaign and a comparison are read."""
    monkeypatch.chdir(tmp_path)
    own = {name: text for name, text in examples().items() if name.startswith("my/")}
    assert len(own) == 9
    for name, text in own.items():
        write(tmp_path / name, text.replace("/data/mine", str(corpus)))
    write(tmp_path / "corpora" / "mine" / "a.txt", "A text.\n" * 99)

    sizes = [word for word in TINY if not word.startswith(("model.", "data=", "optim."))]
    words = ["--config-dir", "my", "data=mine", "model=tiny", *sizes, "data.holdout_fraction=0.2"]
    done = command(*words, "pe=wave", "run.dir=results/runs/wave", cwd=tmp_path, **ALONE)
    assert done.returncode == 0, done.stderr
    assert generate(["results/runs/wave", "a text", "--tokens", "4"]) == 0
    assert "a text" in capsys.readouterr().out
    tide = run_config(["pe=tide", *words[2:]], Path("my"))
    assert tide.pe.name == "Tide"
    assert tide.model.hidden_size == 64
    assert tide.data.name == "mine"

    assert campaign(["rates", "--config-dir", "my", "--list"]) == 0
    assert "qk_rope-optim.lr=0.001-s0" in capsys.readouterr().out

    shutil.copytree(RECORDED, tmp_path / "results" / "records")
    in_a_process(tmp_path, own["my/compare.py"].replace('"example"', '"english"'))
    made = (tmp_path / "my" / "tables" / "english" / "runs.txt").read_text(encoding="utf-8")
    assert re.fullmatch(r"\d+ runs\n", made)


def test_the_files_of_the_package_run(tmp_path: Path, corpus: Path, cache: Path) -> None:
    """A bias, a schedule, an optimizer and a probe train together; then a task, and a report."""
    shutil.copytree(REPOSITORY / "rope_exp", tmp_path / "rope_exp")
    shutil.copytree(REPOSITORY / "configs", tmp_path / "configs")
    added = {name: text for name, text in examples().items() if not name.startswith("my/")}
    assert len(added) == 11
    for name, text in added.items():
        write(tmp_path / name, text)
    paste_lines(tmp_path / "rope_exp")

    here = {**ALONE, "PYTHONPATH": str(tmp_path)}
    data = [f"data.path={corpus}", "data.holdout_fraction=0.2", f"data.cache_dir={cache}"]
    new = ["pe=slope", "schedule=linear", "optim=sgd", "train.probes=[entropy]", "run.group=mine"]
    generated = ["data=reverse", "tokenizer=task", "train.seq_len=32", "train.probes=[answers]"]
    jobs = [
        ["train", *TINY, *data, *new],
        ["train", *TINY, *generated, "run.group=reversed"],
        ["report", "--group", "mine"],
    ]
    for words in jobs:
        done = command(*words, cwd=tmp_path, script="-m rope_exp", **here)
        assert done.returncode == 0, done.stderr

    table = (tmp_path / "results" / "mine" / "table.md").read_text(encoding="utf-8")
    assert "- Slowest run: " in table
    assert re.search(r"- Slope: \d\.\d\d nats\.", table)
    assert "![losses](figures/losses.svg)" in table
    header = next(line for line in table.splitlines() if line.startswith("| variant"))
    assert "| median |" in header
    columns = (tmp_path / "results" / "mine" / "table.csv").read_text(encoding="utf-8")
    assert ",loss_median," in columns.splitlines()[0]
