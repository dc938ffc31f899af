"""What a run has learned, opened again: by load_run, and by transformers."""

import signal
from pathlib import Path

import torch
from support.runs import (
    final_weights,
    num_rows,
    start,
    train,
    wait_for,
)
from transformers import LlamaConfig, LlamaForCausalLM

from rope_exp import load_run


def test_load_run_gives_the_newest_checkpoint(
    whole: tuple[Path, list[str]],
) -> None:
    model, tokenizer = load_run(whole[0])
    assert not model.training
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    ids = tokenizer.encode("Document 3. ").ids
    assert tokenizer.decode(ids) == "Document 3. "
    logits = model(torch.tensor([ids]))
    assert logits.shape == (1, len(ids), 257)
    older, _ = load_run(whole[0], step=50)
    assert not torch.equal(older(torch.tensor([ids])), logits)


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
        # Else a run of 100,000 steps would outlive a test that fails.
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
    assert process.returncode == 75


def test_a_qk_checkpoint_loads_in_transformers(tmp_path: Path, tiny_overrides: list[str]) -> None:
    """Unchanged, and it gives the same logits up to rounding."""
    assert train(*tiny_overrides, "pe=qk_rope", cwd=tmp_path).returncode == 0
    ours, _ = load_run(tmp_path / "run")
    theirs = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=257,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=2,
            rms_norm_eps=1e-5,
            tie_word_embeddings=False,
        )
    )
    theirs.load_state_dict(final_weights(tmp_path / "run"))
    ids = torch.randint(0, 257, (2, 40), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert float((ours(ids) - theirs(ids).logits).abs().max()) < 2e-5
