"""Tests that runs equal except in named factors are compared, and others refused."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from support.refused import refused
from support.reports import all_runs, begun_from, compared, make_run, sha256_of

from rope_exp.comparable import check_seeds
from rope_exp.report import build

Runs = list[dict[str, Any]]

OTHER = sha256_of("other")
PE = ("pe",)
LR = ("optim.lr",)
MODEL = ("model", "pe")
OBJECTIVE = ("train.objective",)


def run(pe: str = "qk_rope", seed: int = 0, *words: str, **result: Any) -> dict[str, Any]:
    """Return arguments of `make_run`; runs of different overrides lie in different groups."""
    group = f"g{sha256_of(repr(words)):.8}"
    return {"pe": pe, "seed": seed, "group": group, "overrides": words, "result": result or None}


def rate(lr: float, pe: str = "qk_rope", seed: int = 0, **result: Any) -> dict[str, Any]:
    return run(pe, seed, f"optim.lr={lr}", **result)


def size(width: int, pe: str = "qk_rope", **result: Any) -> dict[str, Any]:
    return run(pe, 0, f"model.name=wide{width}", f"model.hidden_size={width}", **result)


FIRST, SECOND = (begun_from(sha256_of(name)) for name in ("first", "second"))
LARGE: dict[str, Any] = {"params": 7, "init_sha256": OTHER}
MLM = "train.objective=mlm"
STAGES = "train.stages=[[256,400],[512,100]]"
# A variant with learned frequencies has more parameters; the shared weights must be equal. An older
# run has no `shared_init_sha256`, so its weights cannot be checked.
LEARNED: dict[str, Any] = {"params": 1328288, "init_sha256": OTHER}
SHARED: dict[str, Any] = {"shared_init_sha256": sha256_of("init 0")}

# The runs, the factors, and the labels of the rows.
COMPARED: dict[str, tuple[Runs, tuple[str, ...], list[str]]] = {
    "variants and seeds": (
        [run("vo_rope", 1), run("pe.base=500000", 1), run("vo_rope"), run("pe.base=500000")],
        PE,
        ["qk_rope-base500000", "vo_rope"],
    ),
    "weights of other seeds": ([run(seed=0), run(seed=1)], PE, ["qk_rope"]),
    "a diverged run has seen fewer tokens": (
        [run(), {**run("vo_rope", order_sha256=OTHER), "loss": None, "steps": 100}],
        PE,
        ["qk_rope", "vo_rope"],
    ),
    "learned frequencies": (
        [run(), run("pe.trainable=true", **LEARNED), run("t5", **LEARNED, **SHARED)],
        PE,
        ["qk_rope", "qk_rope-trainable", "t5"],
    ),
    "learned parameters may follow from the sites": (
        [
            run("qk_rope", 0, "pe.trainable=log"),
            run("qkvo_rope", 0, "pe.trainable=log", params=1328320, init_sha256=OTHER),
        ],
        PE,
        ["qk_rope-trainablelog", "qkvo_rope-trainablelog"],
    ),
    "seeds share the weights that all began with": (
        [{"seed": 0, **FIRST}, {"seed": 1, **FIRST}, {"pe": "nope", **FIRST}],
        PE,
        ["nope", "qk_rope"],
    ),
    "keys that change no number": (
        [run(), run("vo_rope", 0, "train.eval_every=25", "tracker.mode=offline")],
        PE,
        ["qk_rope", "vo_rope"],
    ),
    "sizes have weights of their own": (
        [size(128), size(256, **LARGE)],
        MODEL,
        ["model=wide128 qk_rope", "model=wide256 qk_rope"],
    ),
    "objectives have weights and tokens of their own": (
        [run(), run("qk_rope", 0, MLM, **LARGE, order_sha256=OTHER)],
        OBJECTIVE,
        ["train.objective=causal", "train.objective=mlm"],
    ),
    "stages have an order of their own": (
        [run(), run("qk_rope", 0, STAGES, order_sha256=OTHER)],
        ("train.stages",),
        ["train.stages=[[256, 400], [512, 100]]", "train.stages=null"],
    ),
}

# The runs, the factors, and what is said.
REFUSED: dict[str, tuple[Runs, tuple[str, ...], str]] = {
    "other weights": ([run(), run("vo_rope", init_sha256=OTHER)], PE, "from different weights"),
    "another corpus": ([run(), run("vo_rope", data_sha256=OTHER)], PE, "read different corpora"),
    "other tokens": ([run(), run("vo_rope", order_sha256=OTHER)], PE, "saw different tokens"),
    "other sizes": ([run(), run("vo_rope", params=7)], PE, "differ in parameters"),
    "other shared weights": (
        [run(), run("learned", **LEARNED, shared_init_sha256=OTHER)],
        PE,
        "shared_init_sha256",
    ),
    "a copy under another seed": (
        [run(), run(seed=1, init_sha256=sha256_of("init 0"))],
        PE,
        "have seeds 0 and 1, but the same init_sha256",
    ),
    "an order of another seed": (
        [
            {"seed": 1, **FIRST},
            {"seed": 2, **FIRST, "result": {"order_sha256": sha256_of("order 1 500")}},
        ],
        PE,
        "have seeds 1 and 2, but the same order_sha256",
    ),
    "weights of another run": (
        [FIRST, {"seed": 1, **SECOND}],
        PE,
        "not comparable (init_weights: ",
    ),
    "another rate": (
        [rate(0.002), run("vo_rope")],
        PE,
        "not comparable (optim.lr: 0.002 -> 0.003)",
    ),
    "another variant": (
        [rate(0.001), rate(0.01, "vo_rope")],
        LR,
        "pe.name: QK-RoPE -> VO-RoPE",
    ),
    "one name of two variants": (
        [run("pe.name=mine"), run("pe.name=mine", 1, "pe.base=500000")],
        PE,
        "two variants under one name (pe.base: 10000.0 -> 500000.0)",
    ),
    "other weights of a size": (
        [size(128), size(256, **LARGE), size(256, "vo_rope")],
        MODEL,
        "from different weights",
    ),
}


@pytest.mark.parametrize("case", COMPARED)
def test_runs_that_were_made_alike_are_compared(tmp_path: Path, case: str) -> None:
    runs, keys, labels = COMPARED[case]
    for arguments in runs:
        make_run(tmp_path, **arguments)
    assert list(compared(tmp_path, keys=keys)) == labels


@pytest.mark.parametrize("case", REFUSED)
def test_runs_that_differ_in_more_are_refused(tmp_path: Path, case: str) -> None:
    """The sentence names two folders, one of which is the last that was made."""
    runs, keys, words = REFUSED[case]
    folders = [str(make_run(tmp_path, **arguments)) for arguments in runs]
    with refused(words, folders[-1], " and ") as said:
        compared(tmp_path, keys=keys)
    assert any(folder in said[0] for folder in folders[:-1])


def test_rows_are_variants_and_blocks_seeds(tmp_path: Path) -> None:
    for seed in (1, 0):
        make_run(tmp_path, pe="vo_rope", seed=seed, loss=3.5 + seed)
    make_run(tmp_path, pe="pe.base=500000")
    base, vo = compared(tmp_path).values()
    assert base.label == "qk_rope-base500000"
    assert base.name == "QK-RoPE base500000"
    assert vo.label == "vo_rope"
    assert vo.name == "VO-RoPE"
    assert vo.losses == {0: 3.5, 1: 4.5}


def test_a_row_is_as_finished_as_its_best_run(tmp_path: Path) -> None:
    make_run(tmp_path, seed=0, loss=None, steps=20)
    assert compared(tmp_path)["qk_rope"].status == "unfinished"
    make_run(tmp_path, seed=1, loss=None, steps=20, result={})
    assert compared(tmp_path)["qk_rope"].status == "diverged"
    make_run(tmp_path, seed=2)
    row = compared(tmp_path)["qk_rope"]
    assert row.status == ""
    assert row.losses == {2: 3.5}


def test_one_seed_of_weights_may_have_several_orders(tmp_path: Path) -> None:
    """With data.seed, as in the pilot, runs of one seed share weights without being copies."""
    for group, order in (("a", 7), ("b", 8)):
        make_run(tmp_path, group=group, overrides=[f"data.seed={order}"])
    check_seeds(all_runs(tmp_path))


def test_a_run_in_another_place_is_refused(tmp_path: Path) -> None:
    """A copy in another group is a duplicate; within its group, a run has only one valid place."""
    folder = make_run(tmp_path)
    copy = shutil.copytree(folder, tmp_path / "h" / folder.parent.name / folder.name)
    with refused("are both qk_rope-s0", str(folder), str(copy)):
        compared(tmp_path)
    shutil.rmtree(copy)
    for place in ("qk_rope/seed1", "vo_rope/seed0"):
        moved = shutil.copytree(folder, tmp_path / "g" / place)
        with refused(str(moved), "belongs in qk_rope/seed0"):
            compared(tmp_path)
        shutil.rmtree(moved)


def test_numbers_stand_in_the_order_of_numbers(tmp_path: Path) -> None:
    """As text, 1e-05 would sort after 0.01; rows without a loss keep the numeric order."""
    for lr in (0.01, 0.0001, 0.00001):
        make_run(tmp_path, **rate(lr), loss=None, steps=20)
    labels = ["optim.lr=1e-05", "optim.lr=0.0001", "optim.lr=0.01"]
    assert [*compared(tmp_path, keys=LR)] == labels
    assert [*build(all_runs(tmp_path), LR).rows] == labels


@pytest.mark.parametrize("factor", ["optim.rate", "train.log_every", "tracker", "optim.lr.x"])
def test_a_factor_is_a_key_that_can_change_a_number(tmp_path: Path, factor: str) -> None:
    make_run(tmp_path)
    with refused(f"--factors {factor}", "no such config key"):
        compared(tmp_path, keys=(factor,))
