"""Tests that runs of every kind resume exactly, and are probed."""

import pytest
from support.trainers import Make, assert_goes_on, losses

from rope_exp.costs import checkpoint_bytes
from rope_exp.files import read_json
from rope_exp.folder import read_metrics

KINDS = [
    "attn=linear pe=vo_rope",
    "attn=retention pe=qkvo_rope",
    "attn=decay pe=vo_rope attn.gamma=learned",
    "attn=mla attn.q_rank=24",
    "attn=mla_vo pe=qkvo_rope",
    "attn=shared_s1 pe=qkvo_rope",
    "attn=shared_s2 pe=qkv_rope",
    "attn=shared_s3",
    "model.window=7",
    "optim=muon attn=mla",
]
PROBES = "train.probes=[windows,positions,shift,ablation]"
DOCUMENTS = ("data.reset_positions=true", "data.document_mask=true", "pe=k_rope")
# Steps have 64 tokens, except in the last stage: there, one sequence of 24.
STAGES = ("train.stages=[[16,2],[32,3],[8,2],[24,1,1]]", "train.num_steps=8", "pe=qkv_rope")
RUNS = [
    STAGES,
    ("train.objective=mlm", *STAGES),
    (*DOCUMENTS, "data.random_start=100", "train.seq_len=64"),
    ("pe.input=learned", "data.random_start=100"),
    ("pe.trainable=true", "pe.trainable_lr=3000", "train.probes=[drift]"),
]


@pytest.mark.parametrize("words", RUNS, ids=" ".join)
def test_a_run_goes_on_where_it_stopped(make: Make, words: tuple[str, ...]) -> None:
    """Within a stage, too, and with all that its optimizer counts."""
    asked = () if "train.probes=[drift]" in words else (PROBES,)
    whole = assert_goes_on(make, *asked, *words)
    assert (whole.folder / "probes.json").exists()


def test_steps_of_stages_are_counted_and_timed(make: Make) -> None:
    """The first step of a stage may compile: of eight, four begin one, and one follows a pause."""
    trainer = make("run", *STAGES, "train.eval_every=4", "train.save_every=100")
    assert trainer.train() == "finished"
    tokens = [row["tokens"] for row in read_metrics(trainer.folder)]
    assert tokens == [64, 128, 192, 256, 320, 384, 448, 472]
    assert read_json(trainer.folder / "result.json")["tokens"] == 472
    assert len(trainer.throughput._timed) == 3


@pytest.mark.parametrize("words", KINDS)
def test_a_kind_goes_on_where_it_stopped(make: Make, words: str) -> None:
    """Resuming is exact. The loss also falls, and every probe has a result."""
    whole = assert_goes_on(make, *words.split(), PROBES, "train.save_every=2")

    # The predicted size covers weights, moments and a margin of at most 1 MiB.
    [newest] = sorted(whole.folder.glob("checkpoints/step_*"))[-1:]
    taken = sum(path.stat().st_size for path in newest.iterdir())
    asked = checkpoint_bytes(whole.config, whole.decoder.architecture.vocab_size)
    assert asked - 2**20 <= taken <= asked

    answers = read_json(whole.folder / "probes.json")
    assert set(answers) == {"windows", "positions", "shift", "ablation"}
    assert None not in answers["positions"]["loss"]
    first, *_, last = losses(whole)
    assert last[1] < first[1]
