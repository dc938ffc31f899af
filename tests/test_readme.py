"""Tests that the commands printed in README.md and guide.md compose, and of what pages name."""

import argparse
import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hydra.core.override_parser.types import Override
from support.command import command, write
from support.configs import REPOSITORY, TINY

import rope_exp
from rope_exp.compose import compose_runs, split

README = (REPOSITORY / "README.md").read_text(encoding="utf-8")
GUIDE = (REPOSITORY / "docs" / "guide.md").read_text(encoding="utf-8")
# The shell expands the first; the others need optional plugins.
NOT_OURS = ("SLURM_ARRAY_TASK_ID", "launch=slurm", "sweeper=optuna")


def printed(begin: str) -> Iterator[str]:
    """Yield the words after `begin` in each command of an indented block, without comments."""
    for line in (README + GUIDE).replace("\\\n", " ").splitlines():
        _, found, words = line.partition(begin)
        if found and line.startswith("    ") and not any(each in words for each in NOT_OURS):
            yield shlex.join(shlex.split(words.split(" || ")[0], comments=True))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder to run the README's commands in, with the example files that it shows."""
    examples = re.findall(r"`(my/[\w/]+\.(?:py|yaml))`:\n\n((?:    .*\n|\n)+)", README)
    for name, block in examples:
        write(tmp_path / name, re.sub("^    ", "", block, flags=re.MULTILINE).strip() + "\n")
    return tmp_path


def fewest(overrides: Sequence[Override]) -> list[list[str]]:
    """Return jobs of a sweep in which each value occurs: composing all of them takes longer."""
    first = {word: tuple(job) for job in reversed(split(overrides)) for word in job}
    return [[*job] for job in dict.fromkeys(first.values())]


def test_the_tree_names_each_file_of_the_package() -> None:
    """Files at the top have a line each; folders of the package are listed together."""
    tree = README.partition("## Where things are")[2].partition("## ")[0]
    files = {path.name for path in (REPOSITORY / "rope_exp").glob("[!_]*.py")}
    assert files <= set(re.findall(r"^        (\w+\.py)\b", tree, re.MULTILINE))


def test_the_changelog_and_the_citation_name_the_version() -> None:
    """The changelog's newest version is the package's; "Unreleased" may stand above it."""
    changelog = (REPOSITORY / "CHANGELOG.md").read_text(encoding="utf-8")
    [newest, *_] = re.findall(r"^## ([0-9.]+)$", changelog, re.MULTILINE)
    citation = (REPOSITORY / "CITATION.cff").read_text(encoding="utf-8")
    assert newest == rope_exp.__version__
    assert f"\nversion: {rope_exp.__version__}\n" in citation


def test_the_encoding_of_the_readme_trains(folder: Path) -> None:
    words = ["--config-dir", "my", *TINY, "data=copy", "tokenizer=task", "train.seq_len=129"]
    done = command(*words, "pe=slope", "run.dir=run", cwd=folder, RANK="0", OMP_NUM_THREADS="1")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("words", dict.fromkeys(printed("python train.py")))
def test_a_printed_command_composes(
    words: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--config-dir", type=Path)
    parser.add_argument("-m", "--multirun", action="store_true")
    parser.add_argument("--help", action="store_true")
    parser.add_argument("--cfg")
    parser.add_argument("overrides", nargs="*")
    monkeypatch.setattr("rope_exp.compose.split", fewest)
    command = parser.parse_intermixed_args(shlex.split(words))
    assert compose_runs(command.overrides, command.config_dir, multirun=command.multirun).configs
