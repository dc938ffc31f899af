"""Tests of the caption, summary, notes and assumptions of a table."""

from pathlib import Path

import pytest
from support.configs import REPOSITORY
from support.refused import refused
from support.reports import begun_from, make_nine, make_run, report_of, sha256_of

from rope_exp.config.sections import INIT_STD
from rope_exp.report import spelling
from rope_exp.report.assumptions import assumptions
from rope_exp.report.sentences import caption, notes, summary
from rope_exp.report.tables import markdown

ASSUMPTIONS = (
    "Corpus: name stdlib, kind stdlib, holdout_fraction 0.05.",
    "Tokenizer: name bpe_2k, kind bpe, vocab_size 2048,",
    "Model: name nano, hidden_size 128,",
    "Position: base 10000.0, fraction 1.0, trainable false, start 0, precision float32.",
    "Optimiser: name adamw, lr 0.003, betas [0.9, 0.95],",
    "Schedule: name cosine, warmup_fraction 0.2,",
    "global_batch_size 16, seq_len 256, eval_sequences 128, precision auto",
    "without attention masks",
    "mean nats per token on fixed held-out windows",
)


def test_the_caption_says_what_was_run(tmp_path: Path) -> None:
    make_nine(tmp_path)
    assert caption(report_of(tmp_path)) == (
        "Group g: 9 variants, seed 0; 1,328,256 parameters; corpus stdlib; 2,048,000 tokens per "
        "run. Losses are validation losses in nats per token; Δ is the mean within-seed difference "
        "from QK-RoPE."
    )


def test_rows_that_no_source_has_stand_beside_no_source(tmp_path: Path) -> None:
    """Rows outside the nine have no published source; adding one of the nine brings it in."""
    for rotate in ("[q,v]", "[k,o]"):
        make_run(tmp_path, overrides=[f"pe.rotate={rotate}"])
    report = report_of(tmp_path)
    assert report.published is None
    assert not [said for said in notes(report) if "ublished" in said]
    make_run(tmp_path, pe="vo_rope")
    assert report_of(tmp_path).published is not None


def test_rows_without_a_seed_in_common_have_no_order(tmp_path: Path) -> None:
    """The two rows that share seeds are still tested."""
    for pe, seeds in (("qk_rope", range(5)), ("vo_rope", range(5)), ("k_rope", [5])):
        for seed in seeds:
            make_run(tmp_path, pe=pe, seed=seed, loss=3.5 + (pe == "vo_rope") + 0.01 * seed)
    report = report_of(tmp_path)
    assert [pair.sign for pair in report.pairs.values()] == [">"]
    shared = "Pairs are tested over their shared seeds"
    assert summary(report) == f"Rows share too few seeds for an order. {shared}."


def test_the_caption_says_the_epochs_where_the_runs_know(tmp_path: Path) -> None:
    """Epochs are a run's tokens over the corpus's training tokens, which env.json records."""
    make_run(tmp_path, env={"corpus": {"tokens": {"train": 4_096_000, "validation": 9}}})
    make_run(tmp_path, pe="vo_rope", loss=None, steps=20)
    assert "2,048,000 tokens per run, 0.5 epochs. Losses" in caption(report_of(tmp_path))


def test_every_assumption_is_said(tmp_path: Path) -> None:
    make_nine(tmp_path)
    said = "\n".join(assumptions(report_of(tmp_path)))
    for assumption in ASSUMPTIONS:
        assert assumption in said
    without_a_key = (REPOSITORY / "docs" / "comparing.md").read_text(encoding="utf-8")
    assert f"normal with SD {INIT_STD:g};" in without_a_key


def test_what_becomes_of_documents_is_said(tmp_path: Path) -> None:
    words = ["data.document_mask=true", "data.reset_positions=true", "data.random_start=256"]
    make_run(tmp_path, overrides=words)
    said = "\n".join(assumptions(report_of(tmp_path)))
    assert (
        "between them, attention within documents, positions restart at 0 in each document, "
        "training rows start at a random position up to 256."
    ) in said
    assert "without attention masks" not in said


def test_what_runs_began_with_is_said(tmp_path: Path) -> None:
    """Published results are not shown, since they are for training from scratch."""
    weights = sha256_of("weights")
    make_run(tmp_path, **begun_from(weights))
    make_run(tmp_path, pe="vo_rope", **begun_from(weights))
    report = report_of(tmp_path)
    assert f"Initial weights: {weights:.12} from a finished run" in "\n".join(assumptions(report))
    assert report.published is None
    assert "published" not in caption(report) + summary(report) + "\n".join(notes(report))


def test_nothing_published_stands_beside_hidden_tokens(tmp_path: Path) -> None:
    """The published losses are for predicting the next token."""
    for pe in ("qk_rope", "vo_rope"):
        make_run(tmp_path, pe=pe, overrides=["train.objective=mlm"])
    report = report_of(tmp_path)
    assert report.published is None
    assert not report.relations
    assert "published" not in caption(report) + summary(report) + "\n".join(notes(report))


def test_an_assumption_is_said_with_every_value_that_it_had(tmp_path: Path) -> None:
    make_run(tmp_path, overrides=["schedule=wsd"])
    make_run(tmp_path, pe="pe.base=500000", overrides=["schedule=wsd"])
    said = assumptions(report_of(tmp_path))
    assert [line.split(",")[0] for line in said if line.startswith("Position")] == [
        "Position: base 10000.0",
        "Position: base 500000.0",
    ]
    [schedule] = [line for line in said if line.startswith("Schedule")]
    assert "name wsd" in schedule
    assert "decay_fraction 0.2." in schedule


def test_one_seed_calls_no_difference_real(tmp_path: Path) -> None:
    make_nine(tmp_path)
    assert summary(report_of(tmp_path)) == (
        "One seed: no difference can be tested. Best: QK-RoPE (3.7120); worst: V-RoPE (3.8560). "
        "Kendall's tau-b against the published losses is 1.000 (n = 9, p < 0.0001)."
    )


def test_several_seeds_say_what_is_settled_between_neighbours(tmp_path: Path) -> None:
    """Published gaps of 0.001 and 0.007 are within the margin; those of 0.01 and more are not."""
    make_nine(tmp_path, seeds=(0, 1, 2))
    said = summary(report_of(tmp_path))
    order = "QK-RoPE ≈ QKVO-RoPE > K-RoPE ≈ VO-RoPE > QKV-RoPE > NoPE > O-RoPE "
    assert said.startswith(order)
    assert "(3 seeds)." in said
    assert "All 36 pairs are tested together." in said


def test_what_the_runs_do_not_show_is_open(tmp_path: Path) -> None:
    noise = {"qk_rope": (0.0, 0.2, -0.2), "vo_rope": (0.1, -0.1, 0.05), "nope": (0.0, -0.1, 0.2)}
    for pe, losses in noise.items():
        for seed, loss in enumerate(losses):
            make_run(tmp_path, pe=pe, seed=seed, loss=3.5 + loss)
    said = summary(report_of(tmp_path))
    assert said.startswith("QK-RoPE ? VO-RoPE ? NoPE (3 seeds). ")
    assert " > " not in said


def test_where_noise_is_pooled_the_paired_t_is_told_too(tmp_path: Path) -> None:
    """QK has an SD of 0.05, so QKVO's lead of 0.1 is open unless noise is pooled."""
    for seed, wobble in enumerate((-0.05, 0.0, 0.05)):
        make_run(tmp_path, pe="qk_rope", seed=seed, loss=3.5 + wobble)
        make_run(tmp_path, pe="qkvo_rope", seed=seed, loss=3.4)
        make_run(tmp_path, pe="vo_rope", seed=seed, loss=3.8 + wobble / 2)
        make_run(tmp_path, pe="k_rope", seed=seed, loss=3.9 - wobble / 2)
    report = report_of(tmp_path)
    assert summary(report).startswith("QKVO-RoPE > QK-RoPE > VO-RoPE > K-RoPE")
    said, mark = [note for note in notes(report) if "paired t test" in note]
    assert mark == "†: open in the paired t test (Holm)."
    assert "QKVO-RoPE ? QK-RoPE > VO-RoPE ? K-RoPE" in said
    assert "QK-RoPE ≈ QKVO-RoPE is open" in said

    # The report by the paired test pools nothing, and has no second order.
    [said] = [note for note in notes(report.alone) if "paired t" in note]
    assert said.startswith("Noise: ")


def test_without_two_losses_there_is_nothing_to_compare(tmp_path: Path) -> None:
    make_run(tmp_path, loss=None, steps=20)
    nothing = "Nothing to compare. Rows with a loss: "
    assert summary(report_of(tmp_path)) == f"{nothing}none."
    make_run(tmp_path, pe="vo_rope")
    assert summary(report_of(tmp_path)) == f"{nothing}VO-RoPE (3.5000)."


def test_without_a_shared_seed_there_is_no_order(tmp_path: Path) -> None:
    make_run(tmp_path, seed=0)
    make_run(tmp_path, pe="vo_rope", seed=1)
    report = report_of(tmp_path)
    assert summary(report) == "Rows share too few seeds for an order."


@pytest.mark.parametrize(("others", "is_told"), [(1, False), (2, True)])
def test_tau_is_of_three_published_variants(tmp_path: Path, others: int, is_told: bool) -> None:
    """With two variants, tau is only a sign. Variants without a published loss do not count."""
    make_run(tmp_path)
    make_run(tmp_path, pe="pe.base=500000", loss=3.4)
    for pe in ("vo_rope", "nope")[:others]:
        make_run(tmp_path, pe=pe)
    assert ("(n = 3" in summary(report_of(tmp_path))) == is_told
    assert ("tau" in summary(report_of(tmp_path))) == is_told


def test_rows_that_nobody_published_have_no_tau(tmp_path: Path) -> None:
    make_run(tmp_path, pe="pe.base=500000")
    make_run(tmp_path, pe="pe.base=100", loss=3.4)
    said = summary(report_of(tmp_path))
    assert said.startswith("One seed: ")
    assert "tau" not in said


# -- the reference ---------------------------------------------------------------------------------


def test_another_reference_moves_both_differences(tmp_path: Path) -> None:
    make_nine(tmp_path)
    report = report_of(tmp_path, reference="nope")
    delta = report.rows["vo_rope"].ours.delta
    assert delta == pytest.approx(2.770 - 2.795, abs=1e-12)
    assert report.rows["vo_rope"].theirs.delta == 2.770 - 2.795
    assert report.reference.name == "NoPE"


def test_published_differences_need_a_published_reference(tmp_path: Path) -> None:
    make_run(tmp_path)
    make_run(tmp_path, pe="pe.rotate=[q,v]")
    assert report_of(tmp_path).rows["qv_rope"].theirs.delta is None
    # The reference is given by its label or by its name.
    for reference in ("qv_rope", "QV-RoPE"):
        assert report_of(tmp_path, reference=reference).rows["qk_rope"].theirs.delta is None


def test_a_reference_that_the_group_lacks_is_refused(tmp_path: Path) -> None:
    """A note says that the default reference is missing; an explicit one is refused."""
    make_run(tmp_path, pe="nope")
    with refused("--reference qk_rope matches no rows. Available: nope or NoPE"):
        report_of(tmp_path, reference="qk_rope")
    report = report_of(tmp_path)
    assert report.rows["nope"].ours.delta is None
    assert report.rows["nope"].theirs.delta == 2.795 - 2.712
    [said] = [note for note in notes(report) if "so there is no Δ" in note]
    assert said == (
        "qk_rope has no finished run here, so there is no Δ; --reference selects another row."
    )


# -- notes -----------------------------------------------------------------------------------------


def test_runs_without_a_loss_are_noted(tmp_path: Path) -> None:
    make_run(tmp_path)
    make_run(tmp_path, pe="vo_rope", loss=None, steps=130, result={})
    make_run(tmp_path, pe="k_rope", loss=None, steps=250)
    make_run(tmp_path, pe="nope", loss=None, steps=0)
    said = notes(report_of(tmp_path))
    assert "VO-RoPE, seed 0: diverged after 130 of 500 steps (g/vo_rope/seed0)." in said
    assert "K-RoPE, seed 0: unfinished after 250 of 500 steps (g/k_rope/seed0)." in said
    assert "NoPE, seed 0: unfinished after 0 of 500 steps (g/nope/seed0)." in said


def test_a_mean_over_other_seeds_is_noted(tmp_path: Path) -> None:
    for seed in range(3):
        make_run(tmp_path, seed=seed, loss=3.5 + seed)
    make_run(tmp_path, pe="vo_rope", seed=0, loss=3.6)
    make_run(tmp_path, pe="vo_rope", seed=1, loss=None, steps=130, result={})
    make_run(tmp_path, pe="vo_rope", seed=2, loss=5.8)
    report = report_of(tmp_path)
    row = report.rows["vo_rope"].ours
    assert (row.num_seeds, row.loss_mean) == (2, 4.7)
    assert row.delta == pytest.approx(0.2, abs=1e-12)
    assert "‡ VO-RoPE: mean and Δ over seeds 0, 2." in notes(report)
    assert "| 4.7000 ‡ |" in markdown(report)


def test_interrupted_and_unequal_runs_are_noted(tmp_path: Path) -> None:
    mark = "went on with world_size 2 after 1"
    make_run(tmp_path, env={"device": "A100", "marks": [mark]})
    git = {"commit": "0123456789abcdef", "dirty": True}
    make_run(tmp_path, pe="vo_rope", env={"device": "H200", "git": git})
    make_run(tmp_path, pe="k_rope", env={"device": "H200", "git": None})
    said = notes(report_of(tmp_path, left_out={"g/scraps": "it holds no run <pe>/seed<k>"}))
    assert f"QK-RoPE, seed 0: {mark} (g/qk_rope/seed0)." in said
    assert "Runs of seed 0 differ in device: A100, H200." in said
    assert "Runs of seed 0 differ in git: 0123456789+, None." in said
    assert "g/scraps was left out: it holds no run <pe>/seed<k>." in said


def test_blocks_of_other_surroundings_are_noted_as_such(tmp_path: Path) -> None:
    """A device that differs only between blocks affects no difference within a seed."""
    for pe in ("qk_rope", "vo_rope"):
        for seed, device in enumerate(("A100", "H200")):
            make_run(tmp_path, pe=pe, seed=seed, env={"device": device})
    said = notes(report_of(tmp_path))
    assert "Seeds differ in device: A100, H200." in said
    assert not any("Runs of seed" in note for note in said)


def test_what_a_variant_adds_is_said(tmp_path: Path) -> None:
    make_run(tmp_path)
    result = {"params": 1328288, "init_sha256": sha256_of("other")}
    shared = {"shared_init_sha256": sha256_of("init 0")}
    make_run(tmp_path, pe="pe.trainable=true", loss=3.4, result=result | shared)
    report = report_of(tmp_path)
    assert "1,328,256 to 1,328,288 parameters" in caption(report)
    plain = "base 10000.0, fraction 1.0, trainable false, start 0, precision float32"
    assert f"Position: {plain}." in assumptions(report)
    assert f"Position: {plain.replace('false', 'true')}." in assumptions(report)

    make_run(tmp_path / "more", pe="alibi", loss=3.4)
    assert f"Position: {plain}, bias alibi." in assumptions(report_of(tmp_path / "more"))


# -- other factors ---------------------------------------------------------------------------------


def test_what_differs_between_rows_is_said_of_each(tmp_path: Path) -> None:
    for steps, lr in ((400, "0.001"), (500, "0.01")):
        overrides = [f"optim.lr={lr}", f"train.num_steps={steps}"]
        make_run(tmp_path, group=f"lr-{lr}", overrides=overrides)
    report = report_of(tmp_path, keys=("optim.lr", "train.num_steps"))
    said = caption(report)
    assert said.startswith("Group lr-0.001, lr-0.01: 2 rows by optim.lr, train.num_steps, seed 0;")
    assert "1,638,400 to 2,048,000 tokens per run." in said
    rates = [line for line in assumptions(report) if line.startswith("Optimiser")]
    assert [line.split(", ")[1] for line in rates] == ["lr 0.001", "lr 0.01"]
    assert "published" not in " ".join([summary(report), *notes(report)]).lower()


def test_runs_on_hidden_tokens_say_what_is_hidden(tmp_path: Path) -> None:
    make_run(tmp_path, overrides=["train.objective=mlm"])
    said = assumptions(report_of(tmp_path))
    [training] = [line for line in said if line.startswith("Training")]
    assert "objective mlm" in training
    assert any(line.startswith("Objective mlm: attention is bidirectional") for line in said)


def test_runs_in_stages_say_each_of_them(tmp_path: Path) -> None:
    make_run(tmp_path, overrides=["train.stages=[[256,400],[512,100,16]]"])
    report = report_of(tmp_path)
    [training] = [line for line in assumptions(report) if line.startswith("Training")]
    assert "stages [[256, 400], [512, 100, 16]]" in training
    tokens = 400 * 4096 + 100 * 512 * 16
    assert f"{tokens:,} tokens per run" in caption(report)


def test_numbers_of_seeds_are_spelled() -> None:
    said = [spelling.seeds(counts) for counts in ([1, 1], [5, 1, 3], [2])]
    assert said == ["one seed", "1 to 5 seeds", "2 seeds"]
