"""End-to-end tests of loading a trained model, by load_run, `generate` and transformers."""

import signal
from pathlib import Path

import pytest
from support.refused import refused
from support.runs import num_rows, start, wait_for

from rope_exp import load_run
from rope_exp.commands.generate import main as generate


def test_generate_prints_what_a_run_says(
    whole: tuple[Path, list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    """A checkpoint gives the same text each time, and another checkpoint gives another text."""
    folder = str(whole[0])
    said = []
    for words in ([], [], ["--step", "50"]):
        options = ["--tokens", "20", "--temperature", "0", *words]
        assert generate([folder, "Document 3. ", "Doc", *options]) == 0
        said.append(capsys.readouterr().out)
    assert said[0].startswith("Document 3. ")
    assert "\n\nDoc" in said[0]
    assert said[0] == said[1]
    assert said[0] != said[2]


def test_a_step_that_was_not_saved_is_refused(whole: tuple[Path, list[str]]) -> None:
    with refused("holds no step 3", "it holds"):
        generate([str(whole[0]), "text", "--step", "3"])


@pytest.mark.torture
def test_a_run_in_progress_can_be_opened_at_any_moment(
    tmp_path: Path, tiny_overrides: list[str]
) -> None:
    often = ("train.save_every=1", "train.keep_checkpoints=1", "train.num_steps=100000")
    process = start(*tiny_overrides, *often, cwd=tmp_path)
    try:
        wait_for(lambda: num_rows(tmp_path / "run") >= 5, process)
        for _ in range(150):
            load_run(tmp_path / "run")
    finally:
        # Otherwise a run of 100,000 steps would outlive a failing test.
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
    assert process.returncode == 75
