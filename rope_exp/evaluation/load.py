"""Open a run: its model at a checkpoint, and its tokenizer."""

from os import PathLike
from pathlib import Path

import torch
from tokenizers import Tokenizer

from rope_exp.data.tokenizer import load_tokenizer
from rope_exp.model.decoder import Decoder, weights
from rope_exp.run import checkpoint
from rope_exp.run.folder import read_config
from rope_exp.system.errors import CheckpointError


def load_run(run_dir: str | PathLike[str], step: int | None = None) -> tuple[Decoder, Tokenizer]:
    """The model and tokenizer of a run folder.

    Args:
        run_dir: results/runs/<group>/<pe>/seed<k>.
        step: a saved step; None: the newest checkpoint that verifies.
    Returns:
        The model in eval mode and float32 (`model(ids_BT)` gives logits_BTV) and its tokenizer.
    Raises:
        RecordError: the folder is no run. CheckpointError: no such checkpoint, or it does not verify.
    """
    folder = Path(run_dir)
    config = read_config(folder)
    checkpoints = folder / "checkpoints"
    if step is not None and step not in checkpoint.list_steps(checkpoints):
        raise CheckpointError(
            f"{checkpoints} holds no step {step}; it holds {checkpoint.list_steps(checkpoints)}"
        )
    saved = _newest(checkpoints) if step is None else checkpoint.load(checkpoints, step)
    if saved is None:
        raise CheckpointError(f"{checkpoints} holds no checkpoint yet")
    tokenizer = load_tokenizer(folder / "tokenizer.json")
    head = saved.model.get("lm_head.weight")
    vocab_size = head.shape[0] if head is not None and head.ndim == 2 else 1
    with torch.device("meta"):  # without memory: config.yaml may claim any sizes
        expected = weights(Decoder(config.architecture(vocab_size)))
    checkpoint.check_tensors(
        f"the checkpoint of step {saved.step} in {folder}", saved.model, expected
    )
    model = Decoder(config.architecture(vocab_size))
    model.load_state_dict(saved.model)
    return model.eval(), tokenizer


def _newest(checkpoints: Path) -> checkpoint.Checkpoint | None:
    """The newest that verifies; of a run in progress, which may drop what was listed while it is read."""
    while True:
        listed = checkpoint.list_steps(checkpoints)
        try:
            return checkpoint.load_newest(checkpoints)
        except CheckpointError:
            if checkpoint.list_steps(checkpoints) == listed:
                raise
