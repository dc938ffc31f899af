"""Tests of reading run folders one by one: damaged, edited or copied ones are refused by name."""

from pathlib import Path

import pytest
from support.refused import refused
from support.reports import ask, begun_from, make_run, sha256_of

from rope_exp.folder import METRICS
from rope_exp.runs import Run, find_groups, read_runs


def read(runs: Path) -> list[Run]:
    return read_runs([runs / "g"])[0]


# -- selection of folders --------------------------------------------------------------------------


def test_several_groups_are_not_mixed_but_asked_about(tmp_path: Path) -> None:
    make_run(tmp_path, group="small")
    make_run(tmp_path, group="large")
    (tmp_path / "empty").mkdir()
    with refused("holds 2 groups", "large, small"):
        find_groups(tmp_path, None)
    assert find_groups(tmp_path, "small") == [tmp_path / "small"]


def test_several_groups_may_be_asked_for_by_pattern(tmp_path: Path) -> None:
    for group in ("lr-low", "lr-high", "other"):
        make_run(tmp_path, group=group)
    found = find_groups(tmp_path, "lr-*", several=True)
    assert [folder.name for folder in found] == ["lr-high", "lr-low"]
    assert len(find_groups(tmp_path, None, several=True)) == 3


def test_no_runs_are_refused_with_the_way_to_make_them(tmp_path: Path) -> None:
    with refused("holds no runs", "rope-exp train +experiment=nine"):
        find_groups(tmp_path, None)
    make_run(tmp_path)
    with refused("a run with a custom run.dir must be moved to such a folder"):
        find_groups(tmp_path / "g" / "qk_rope", None)
    with refused("holds no groups other", "Available for --group: g"):
        find_groups(tmp_path, "other")


def test_what_is_no_run_is_left_out_by_name(tmp_path: Path) -> None:
    """Hidden folders are skipped silently, since run.fresh moves old runs to `.seed0.old-1`."""
    make_run(tmp_path, pe="vo_rope")
    for name in ("vo_rope/notes", "scraps", ".hidden", "vo_rope/.seed0.old-1"):
        (tmp_path / "g" / name).mkdir()
    runs, left_out = read_runs([tmp_path / "g"])
    assert [run.where for run in runs] == ["g/vo_rope/seed0"]
    assert list(left_out) == ["g/scraps", "g/vo_rope/notes"]


@pytest.mark.parametrize("name", ["config.yaml", "result.json", "metrics.jsonl", "env.json"])
def test_a_run_that_cannot_be_read_leaves_the_others(tmp_path: Path, name: str) -> None:
    """The run is left out with its file's name, so a table of the others is still possible."""
    make_run(tmp_path, pe="vo_rope")
    folder = make_run(tmp_path, pe="nope")
    (folder / name).write_text("x\n")
    runs, left_out = read_runs([tmp_path / "g"])
    assert [run.where for run in runs] == ["g/vo_rope/seed0"]
    assert str(folder / name) in left_out["g/nope/seed0"]


# -- contents of a folder --------------------------------------------------------------------------


def test_a_run_says_what_its_folder_does(tmp_path: Path) -> None:
    tokens = {"tokens": {"train": 1_024_000}}
    make_run(tmp_path, pe="pe.base=500000", loss=3.25, env={"corpus": tokens})
    make_run(tmp_path, pe="k_rope", loss=None, steps=250)
    make_run(tmp_path, pe="nope", loss=None, steps=130, result={})
    runs = {run.variant_name: run for run in read(tmp_path)}
    finished = runs["QK-RoPE base500000"]
    assert (finished.status, finished.loss) == ("finished", 3.25)
    assert (finished.config.train.num_tokens, finished.epochs) == (500 * 16 * 256, 2.0)
    assert (runs["K-RoPE"].status, runs["K-RoPE"].loss) == ("unfinished", None)
    assert (runs["NoPE"].status, runs["NoPE"].loss) == ("diverged", None)
    assert runs["NoPE"].epochs is None


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("pe", "vo_rope"), ("rotate", ["v", "o"]), ("seed", 1), ("config_sha256", "0" * 64),
        ("group_sha256", "0" * 64), ("val/loss", None), ("val/loss", "3.5"), ("val/loss", True),
        ("params", "many"), ("init_sha256", None), ("order_sha256", None), ("data_sha256", 3),
    ],
)  # fmt: skip
def test_an_edited_or_foreign_result_is_refused(tmp_path: Path, key: str, value: object) -> None:
    folder = make_run(tmp_path, result={key: value})
    with refused(str(folder / "result.json"), key):
        read(tmp_path)


def test_a_config_edited_after_the_run_is_refused(tmp_path: Path) -> None:
    folder = make_run(tmp_path)
    config = folder / "config.yaml"
    config.write_text(config.read_text().replace("lr: 0.003", "lr: 0.004"))
    with refused(str(folder), "group_sha256"):
        read(tmp_path)


def test_weights_that_the_config_does_not_say_are_refused(tmp_path: Path) -> None:
    """The initial weights in env.json must be those that the config names."""
    one, other = (begun_from(sha256_of(name)) for name in ("one", "other"))
    folder = make_run(tmp_path, **{**one, "env": other["env"]})
    with refused(f"{folder / 'env.json'} says init_weights="):
        read(tmp_path)
    make_run(tmp_path / "plain", env=one["env"])
    with refused("by its config it is None"):
        read(tmp_path / "plain")
    make_run(tmp_path / "whole", **one)
    assert len(read(tmp_path / "whole")) == 1


def test_not_a_number_is_no_loss(tmp_path: Path) -> None:
    path = make_run(tmp_path) / "result.json"
    path.write_text(path.read_text().replace('"val/loss": 3.5', '"val/loss": NaN'))
    with refused("result.json", "NaN is no JSON"):
        read(tmp_path)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("config.yaml", "{"), ("config.yaml", "seed: late\n"), ("result.json", "{"),
        ("result.json", "[]"), ("metrics.jsonl", "x\n"),
        ("metrics.jsonl", '{"step": 1, "train/loss": "low"}\n'), ("env.json", "null"),
        ("env.json", '{"marks": "late"}'),
        ("env.json", '{"marks": [], "started": [], "corpus": 7}'),
        ("env.json", '{"marks": [], "started": [], "corpus": {"tokens": {"train": 0}}}'),
        ("env.json", '{"marks": [], "started": [], "init_from": 7}'),
        ("env.json", '{"marks": [], "started": [], "init_from": {"weights_sha256": "x"}}'),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, name: str, text: str) -> None:
    folder = make_run(tmp_path)
    (folder / name).write_text(text)
    with refused(str(folder / name)):
        read(tmp_path)


def test_a_folder_that_lost_its_config_is_named(tmp_path: Path) -> None:
    folder = make_run(tmp_path)
    (folder / "config.yaml").unlink()
    with refused(str(folder / "config.yaml")):
        read(tmp_path)


@pytest.mark.parametrize("harm", ["edited", "infinite", "removed", "cut"])
def test_answers_are_those_that_the_result_vouches_for(tmp_path: Path, harm: str) -> None:
    folder = make_run(tmp_path)
    ask(folder, {"windows": {"loss": [3.25, 3.75]}})
    assert read(tmp_path)[0].probes == {"windows": {"loss": [3.25, 3.75]}}

    path = folder / "probes.json"
    text = path.read_text()
    harmed = {
        "edited": text.replace("3.75", "3.5"),
        "infinite": text.replace("3.75", "1e999"),
        "removed": "",
        "cut": text[:-9],
    }
    path.write_text(harmed[harm])
    if harm == "removed":
        path.unlink()
    with refused(str(path)):
        read(tmp_path)


# -- the curve -------------------------------------------------------------------------------------


@pytest.mark.parametrize("harm", ["edited", "cut", "emptied", "removed", "longer"])
def test_a_curve_must_end_where_the_result_says(tmp_path: Path, harm: str) -> None:
    path = make_run(tmp_path) / METRICS
    text = path.read_text()
    row = '{"step": 510, "tokens": 2088960, "train/loss": 3.0, "val/loss": 3.5}\n'
    harmed = {
        "edited": text.replace('"val/loss": 3.5}', '"val/loss": 3.25}'),
        "cut": "".join(text.splitlines(keepends=True)[:-1]),
        "emptied": "",
        "removed": "",
        "longer": text + row,
    }
    assert harmed[harm] != text
    path.write_text(harmed[harm])
    if harm == "removed":
        path.unlink()
    with refused(str(path)):
        read(tmp_path)


def test_a_diverged_curve_may_not_go_past_its_end(tmp_path: Path) -> None:
    """The curve of a diverged run may end before the last step in its result, but not after."""
    result = {"steps": 90}
    folder = make_run(tmp_path, loss=None, steps=100, result=result)
    with refused(str(folder / METRICS), "step 100, past the 90"):
        read(tmp_path)
