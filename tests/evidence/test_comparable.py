"""Tests that runs equal except in named factors are compared, and others refused."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from support.refused import refused
from support.reports import all_runs, begun_from, compared, make_run, sha256_of

from rope_exp.comparable import check_seeds
from rope_exp.stats import contrasts, table_of

OTHER = sha256_of("other")
LR = ("optim.lr",)


def test_rows_are_variants_and_blocks_seeds(tmp_path: Path) -> None:
    for seed in (1, 0):
        make_run(tmp_path, pe="vo_rope", seed=seed, loss=3.5 + seed)
        make_run(tmp_path, pe="pe.base=500000", seed=seed)
    rows = compared(tmp_path)
    assert list(rows) == ["qk_rope-base500000", "vo_rope"]
    assert rows["vo_rope"].losses == {0: 3.5, 1: 4.5}
    assert rows["vo_rope"].name == "VO-RoPE"
    assert rows["qk_rope-base500000"].name == "QK-RoPE base500000"


def test_a_row_is_as_finished_as_its_best_run(tmp_path: Path) -> None:
    make_run(tmp_path, seed=0, loss=None, steps=20)
    assert compared(tmp_path)["qk_rope"].verdict == "unfinished"
    make_run(tmp_path, seed=1, loss=None, steps=20, result={})
    assert compared(tmp_path)["qk_rope"].verdict == "diverged"
    make_run(tmp_path, seed=2)
    row = compared(tmp_path)["qk_rope"]
    assert (row.verdict, row.losses) == ("", {2: 3.5})


# -- facts that must be equal ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "what"),
    [
        ("init_sha256", "started from different weights"),
        ("data_sha256", "read different corpora"),
        ("order_sha256", "saw different tokens"),
        ("params", "differ in parameters"),
    ],
)
def test_runs_that_were_not_made_alike_are_refused(tmp_path: Path, key: str, what: str) -> None:
    qk = make_run(tmp_path)
    vo = make_run(tmp_path, pe="vo_rope", result={key: 7 if key == "params" else OTHER})
    with refused(what, str(qk), str(vo), key):
        compared(tmp_path)


def test_corpora_must_agree_over_seeds_and_weights_need_not(tmp_path: Path) -> None:
    make_run(tmp_path, seed=0)
    make_run(tmp_path, seed=1)
    assert len(compared(tmp_path)["qk_rope"].runs) == 2
    make_run(tmp_path, seed=2, result={"data_sha256": OTHER})
    with refused("read different corpora"):
        compared(tmp_path)


def test_a_diverged_run_has_seen_fewer_tokens(tmp_path: Path) -> None:
    make_run(tmp_path)
    make_run(tmp_path, pe="vo_rope", loss=None, steps=100, result={"order_sha256": OTHER})
    assert len(compared(tmp_path)) == 2


def test_learned_frequencies_are_parameters(tmp_path: Path) -> None:
    """A variant with learned frequencies has more parameters; the shared weights must be equal.

    An older run has no `shared_init_sha256`, so its weights cannot be checked.
    """
    make_run(tmp_path)
    result = {"params": 1328288, "init_sha256": OTHER}
    make_run(tmp_path, pe="pe.trainable=true", result=result)
    assert list(compared(tmp_path)) == ["qk_rope", "qk_rope-trainable"]

    shared = {"shared_init_sha256": sha256_of("init 0")}
    make_run(tmp_path, pe="t5", result=result | shared)
    assert len(compared(tmp_path)) == 3
    make_run(tmp_path, pe="learned", result=result | {"shared_init_sha256": OTHER})
    with refused("started from different weights", "shared_init_sha256"):
        compared(tmp_path)


def test_one_seed_under_several_numbers_is_refused(tmp_path: Path) -> None:
    """Copies of one run would look like several seeds that agree to the last digit."""
    copied = {"init_sha256": sha256_of("init 0"), "order_sha256": sha256_of("order 0 500")}
    first = make_run(tmp_path)
    make_run(tmp_path, pe="vo_rope")
    second = make_run(tmp_path, seed=1, result=copied)
    with refused(str(first), str(second), "have seeds 0 and 1, but the same init_sha256"):
        compared(tmp_path)


def test_what_all_began_with_is_no_copy_and_an_order_is(tmp_path: Path) -> None:
    """Runs from one finished run share weights at all seeds, but each seed has its own order."""
    began = begun_from(sha256_of("weights"))
    for seed in (0, 1):
        make_run(tmp_path, seed=seed, **began)
    assert len(compared(tmp_path)["qk_rope"].runs) == 2

    began["result"]["order_sha256"] = sha256_of("order 1 500")
    make_run(tmp_path, seed=2, **began)
    with refused("have seeds 1 and 2, but the same order_sha256"):
        compared(tmp_path)


def test_one_seed_of_weights_may_have_several_orders(tmp_path: Path) -> None:
    """With data.seed, as in the pilot, runs of one seed share weights without being copies."""
    for group, order in (("a", 7), ("b", 8)):
        make_run(tmp_path, group=group, overrides=[f"data.seed={order}"])
    check_seeds(all_runs(tmp_path))


def test_weights_that_runs_began_with_are_no_seed(tmp_path: Path) -> None:
    """Runs from one finished run share a table; runs from two need `init_weights` as a factor."""
    began = [begun_from(sha256_of(name)) for name in ("first", "second")]
    make_run(tmp_path, **began[0])
    make_run(tmp_path, pe="nope", **began[0])
    assert list(compared(tmp_path)) == ["nope", "qk_rope"]

    second = make_run(tmp_path, seed=1, **began[1])
    with refused(str(second), "not comparable (init_weights: "):
        compared(tmp_path)
    rows = compared(tmp_path, keys=("pe", "init_weights"))
    assert sorted(row.losses.popitem()[0] for row in rows.values()) == [0, 0, 1]


def test_other_keys_that_change_a_number_are_refused(tmp_path: Path) -> None:
    qk = make_run(tmp_path, overrides=["optim.lr=0.002"])
    vo = make_run(tmp_path, pe="vo_rope")
    with refused(str(qk), str(vo), "not comparable (optim.lr: 0.002 -> 0.003)"):
        compared(tmp_path)


def test_keys_that_change_no_number_may_differ(tmp_path: Path) -> None:
    make_run(tmp_path)
    make_run(tmp_path, pe="vo_rope", overrides=["train.eval_every=25", "tracker.mode=offline"])
    assert len(compared(tmp_path)) == 2


def test_two_variants_under_one_name_are_refused(tmp_path: Path) -> None:
    make_run(tmp_path, pe="pe.name=mine", seed=0)
    make_run(tmp_path, pe="pe.name=mine", seed=1, overrides=["pe.base=500000"])
    with refused("two variants under one name (pe.base: 10000.0 -> 500000.0)"):
        compared(tmp_path)


def test_a_copied_folder_is_refused_as_a_duplicate(tmp_path: Path) -> None:
    """The copy lies in another group, because within one group a run has only one valid place."""
    folder = make_run(tmp_path)
    copy = tmp_path / "h" / folder.parent.name / folder.name
    shutil.copytree(folder, copy)
    with refused("are both qk_rope-s0", str(folder), str(copy)):
        compared(tmp_path)


def test_a_run_in_a_folder_named_after_another_is_refused(tmp_path: Path) -> None:
    folder = make_run(tmp_path)
    moved = folder.rename(folder.with_name("seed1"))
    with refused(str(moved), "belongs in qk_rope/seed0"):
        compared(tmp_path)
    moved.rename(folder)
    folder.parent.rename(tmp_path / "g/vo_rope")
    with refused(str(tmp_path / "g/vo_rope/seed0"), "belongs in qk_rope/seed0"):
        compared(tmp_path)


# -- other factors ---------------------------------------------------------------------------------


def make_rate(runs: Path, *, lr: str, **others: Any) -> Path:
    return make_run(runs, group=f"lr-{lr}", overrides=[f"optim.lr={lr}"], **others)


def make_size(runs: Path, *, width: int, **others: Any) -> Path:
    name = f"wide{width}"
    overrides = [f"model.name={name}", f"model.hidden_size={width}"]
    return make_run(runs, group=name, overrides=overrides, **others)


def test_what_a_learning_rate_leaves_equal_is_asked_for(tmp_path: Path) -> None:
    """Weights and order do not depend on the learning rate, so they must be equal within a seed."""
    make_rate(tmp_path, lr="0.001")
    make_rate(tmp_path, lr="0.01", result={"init_sha256": OTHER})
    with refused("started from different weights"):
        compared(tmp_path, keys=LR)


def test_what_a_comparison_does_not_name_must_be_equal(tmp_path: Path) -> None:
    make_rate(tmp_path, lr="0.001")
    make_rate(tmp_path, lr="0.01", pe="vo_rope")
    with refused("not comparable", "pe.name: QK-RoPE -> VO-RoPE"):
        compared(tmp_path, keys=LR)
    rows = compared(tmp_path, keys=("pe", *LR))
    assert {row.name for row in rows.values()} == {
        "QK-RoPE optim.lr=0.001",
        "VO-RoPE optim.lr=0.01",
    }
    with refused("optim.lr: 0.001 -> 0.01"):
        compared(tmp_path)


def test_models_have_weights_of_their_own(tmp_path: Path) -> None:
    """At one seed, weights must agree within a size, and the order of tokens across sizes."""
    keys = ("model", "pe")
    weights = {"params": 7, "init_sha256": OTHER}
    make_size(tmp_path, width=128)
    make_size(tmp_path, width=256, result=weights)
    rows = compared(tmp_path, keys=keys)
    assert list(rows) == ["model=wide128 qk_rope", "model=wide256 qk_rope"]

    make_size(tmp_path, width=256, pe="vo_rope")
    with refused("started from different weights", "wide256/qk_rope", "wide256/vo_rope"):
        compared(tmp_path, keys=keys)

    shutil.rmtree(tmp_path / "wide256")
    make_size(tmp_path, width=256, result=weights | {"order_sha256": OTHER})
    with refused("saw different tokens"):
        compared(tmp_path, keys=keys)


def test_numbers_stand_in_the_order_of_numbers(tmp_path: Path) -> None:
    """As text, 1e-05 would sort after 0.01; rows without a loss keep the numeric order."""
    for lr in ("0.01", "0.0001", "0.00001"):
        make_rate(tmp_path, lr=lr, loss=None, steps=20)
    labels = ["optim.lr=1e-05", "optim.lr=0.0001", "optim.lr=0.01"]
    assert list(compared(tmp_path, keys=LR)) == labels
    losses = table_of({label: {} for label in labels})
    assert [*contrasts(losses, labels[0]).index] == labels


@pytest.mark.parametrize(
    "factor", ["optim.rate", "attention", "train.log_every", "tracker", "pe.label", "optim.lr.x"]
)
def test_a_factor_is_a_key_that_can_change_a_number(tmp_path: Path, factor: str) -> None:
    make_run(tmp_path)
    with refused(f"--factors {factor}", "no such config key"):
        compared(tmp_path, keys=(factor,))


def test_a_section_as_a_factor_must_name_its_rows(tmp_path: Path) -> None:
    """Two learning rates under `optim` would share the label optim=adamw."""
    make_rate(tmp_path, lr="0.001")
    make_rate(tmp_path, lr="0.01", seed=1)
    with refused("two variants under one name (optim.lr: 0.001 -> 0.01)"):
        compared(tmp_path, keys=("optim",))


# -- other objectives and stages -------------------------------------------------------------------


def test_another_objective_has_weights_and_tokens_of_its_own(tmp_path: Path) -> None:
    """Masking adds an id and enters the order's hash, so neither is compared between objectives."""
    key = "train.objective"
    other = {"init_sha256": OTHER, "order_sha256": OTHER, "params": 1328512}
    make_run(tmp_path, group="causal")
    make_run(tmp_path, group="mlm", overrides=[f"{key}=mlm"], result=other)
    assert list(compared(tmp_path, keys=(key,))) == [
        "train.objective=causal",
        "train.objective=mlm",
    ]
    with refused("are both qk_rope-s0"):
        compared(tmp_path)

    make_run(tmp_path, group="mlm", pe="vo_rope", overrides=[f"{key}=mlm"])
    with refused("started from different weights"):
        compared(tmp_path, keys=("pe", key))


def test_stages_have_an_order_of_their_own(tmp_path: Path) -> None:
    key = "train.stages"
    make_run(tmp_path, group="one")
    overrides = [f"{key}=[[256,400],[512,100]]"]
    make_run(tmp_path, group="staged", overrides=overrides, result={"order_sha256": OTHER})
    assert len(compared(tmp_path, keys=(key,))) == 2


def test_learned_parameters_may_follow_from_the_sites(tmp_path: Path) -> None:
    """QKVO learns the frequencies of two pairs of sites where QK learns those of one."""
    learned = ["pe.trainable=log"]
    make_run(tmp_path, overrides=learned)
    two = {"params": 1328320, "init_sha256": OTHER}
    make_run(tmp_path, pe="qkvo_rope", overrides=learned, result=two)
    assert len(compared(tmp_path)) == 2
