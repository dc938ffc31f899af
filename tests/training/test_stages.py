"""Tests of training in stages and on masked tokens: resuming, counts, evaluation, loading."""

import pytest
import torch
from support.refused import refused
from support.trainers import Make, assert_goes_on, same, snapshot

from rope_exp import load_run
from rope_exp.commands.generate import Sampling, generate
from rope_exp.files import read_json
from rope_exp.folder import read_metrics
from rope_exp.sources import training_batch
from rope_exp.tokenizer import byte_tokenizer

MLM = "train.objective=mlm"
# Steps have 64 tokens, except in the last stage: there, one sequence of 24.
STAGES = ("train.stages=[[16,2],[32,3],[8,2],[24,1,1]]", "train.num_steps=8")
PROBES = "train.probes=[windows,positions,shift,ablation]"


@pytest.mark.parametrize("objective", ["causal", "mlm"])
def test_a_run_goes_on_inside_a_stage(make: Make, objective: str) -> None:
    """Weights, rows and order are exact after a stop within the second stage's three steps."""
    assert_goes_on(make, f"train.objective={objective}", *STAGES, "pe=qkv_rope")


def test_steps_of_stages_are_counted_and_timed(make: Make) -> None:
    """The first step of a stage may compile: of eight, four begin one, and one follows a pause."""
    trainer = make("run", *STAGES, "train.eval_every=4", "train.save_every=100")
    assert trainer.train() == "finished"
    tokens = [row["tokens"] for row in read_metrics(trainer.folder)]
    assert tokens == [64, 128, 192, 256, 320, 384, 448, 472]
    assert read_json(trainer.folder / "result.json")["tokens"] == 472
    assert len(trainer.throughput._of_tokens) == 3


@pytest.mark.parametrize("micro", ["null", "1", "2"])
def test_the_loss_is_that_of_hidden_tokens(make: Make, micro: str) -> None:
    """The loss is the mean of -log p at the masked places, for every micro-batch size."""
    trainer = make("run", "pe=qkv_rope", MLM, *STAGES, f"train.micro_batch_size={micro}")
    batch = training_batch(trainer.config, trainer.data, 3)
    assert batch.ids_BT.shape == (2, 32)
    assert batch.place_BP is not None
    ids, places, targets = map(torch.from_numpy, (batch.ids_BT, batch.place_BP, batch.target_BP))
    with torch.no_grad():
        log_p = torch.log_softmax(trainer.decoder(ids).double(), dim=-1)
    at_places = log_p.gather(1, places[:, :, None].expand(-1, -1, log_p.shape[-1]))
    expected = -at_places.gather(-1, targets[:, :, None]).mean().item()

    started = trainer.train_step(3)
    assert started is not None
    assert started.read().loss == pytest.approx(expected, abs=1e-6)


def test_a_masked_run_is_asked_and_opened_and_generates_nothing(make: Make) -> None:
    """Probes are of the rows of every evaluation, whatever the last stage's length."""
    trainer = make("run", "pe=v_rope", MLM, *STAGES, PROBES)
    assert trainer.train() == "finished"
    assert trainer.decoder.lm_head.weight.shape[0] == 258
    answers = read_json(trainer.folder / "probes.json")
    result = read_json(trainer.folder / "result.json")
    windows = answers["windows"]["loss"]
    assert sum(windows) / len(windows) == pytest.approx(result["val/loss"], abs=1e-5)
    assert answers["positions"]["lengths"][0] == 16
    assert len(set(answers["shift"]["loss"])) > 1
    assert answers["ablation"]["without"] == ["", "v"]
    byte_tokenizer().save(str(trainer.folder / "tokenizer.json"))
    decoder, tokenizer = load_run(trainer.folder)
    assert same(dict(decoder.named_parameters()), snapshot(trainer))
    # Attention reads both ways, so the last token changes the first logits.
    ids_BT = torch.tensor([tokenizer.encode("Document 3").ids])
    changed_BT = ids_BT.clone()
    changed_BT[0, -1] = 257
    with torch.no_grad():
        assert not torch.equal(decoder(ids_BT)[:, 0], decoder(changed_BT)[:, 0])
    with refused("train.objective: looks both ways", "no next token to generate"):
        generate(decoder, tokenizer, "Document", 256, Sampling(num_tokens=5))
