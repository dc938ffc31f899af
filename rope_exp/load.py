"""A run's model, from a checkpoint, and its tokenizer, for use after training."""

from os import PathLike
from pathlib import Path

import torch
from tokenizers import Tokenizer

from rope_exp import checkpoint
from rope_exp.config import DEFAULT_OUTPUT, RunConfig
from rope_exp.decoder import Decoder
from rope_exp.errors import CheckpointError, ConfigError, DataError, RunFolderError, first_line
from rope_exp.files import read_bytes
from rope_exp.folder import CONFIG, ENV, list_steps, read_config, read_env


def load_run(
    run_dir: str | PathLike[str], step: int | None = None, *, trust_code: bool = False
) -> tuple[Decoder, Tokenizer]:
    """Return the model and the tokenizer of a run folder, results/runs/<group>/<pe>/seed<k>.

    A run of pe.code holds Python code, which builds its model. It is executed if the run lies below
    results/runs of the current folder, links followed, where your own runs are.

    Args:
        run_dir: the run's folder.
        step: a saved step; None: the newest checkpoint that verifies.
        trust_code: execute the code of a run that lies elsewhere, too.
    Returns:
        The model in eval mode and float32 (`model(ids_BT)` gives logits_BTV) and its tokenizer.
        Under train.objective=mlm the model's last id is the mask, one past the tokenizer's.
    Raises:
        RunFolderError, CheckpointError: there is no such run or checkpoint, or it is damaged.
        DataError: its tokenizer is missing or damaged.
        ConfigError: its code is not trusted, or fails.
    """
    return load_checkpoint(Path(run_dir), step, trust_code=trust_code)[:2]


def load_checkpoint(
    folder: Path, step: int | None, *, trust_code: bool = False
) -> tuple[Decoder, Tokenizer, int]:
    """Return the model, the tokenizer and the step of a checkpoint; see `load_run`.

    Args:
        folder: the run's folder.
        step: a saved step; None: the newest checkpoint that verifies.
        trust_code: execute the code of a run that lies elsewhere than below results/runs.
    Raises:
        RunFolderError: there is no run in this folder, or its config is damaged.
        CheckpointError: there is no such checkpoint, or it is damaged.
        DataError: its tokenizer is missing or damaged.
        ConfigError: its code is not trusted, or fails.
    """
    if not (folder / CONFIG).exists():
        raise RunFolderError(f"{folder}: there is no run in this folder")
    config = read_config(folder)
    if not (trust_code or has_trusted_code(folder, config)):
        reason = (
            f"{folder} brings this code, which would be executed, and does not lie below "
            f"{DEFAULT_OUTPUT}; read pe.source in its {CONFIG}, and allow it by "
            "trust_code=True (--trust-code)"
        )
        raise ConfigError("pe.code", config.pe.code, reason)
    saved = _saved(folder / "checkpoints", step)
    tokenizer = load_tokenizer(folder / "tokenizer.json")

    # The vocabulary's size comes from the weights; that they are embeddings is checked below.
    shape = saved.model.get("model.embed_tokens.weight", torch.empty(1)).shape
    num_rows = shape[0] if shape else 1
    model = Decoder(config.architecture(num_rows - config.num_extra_ids))
    checkpoint.load_weights(f"the checkpoint of step {saved.step} in {folder}", model, saved.model)
    return model.eval(), tokenizer, saved.step


def has_trusted_code(folder: Path, config: RunConfig) -> bool:
    """Return whether a run brings no code, or lies below the user's own results/runs.

    A link there to a folder elsewhere does not count.
    """
    return config.pe.source is None or folder.resolve().is_relative_to(DEFAULT_OUTPUT.resolve())


def load_tokenizer(path: Path | str) -> Tokenizer:
    """Read a tokenizer.json, set to encode any text as plain text, which the file does not say."""
    try:
        tokenizer = Tokenizer.from_str(read_bytes(Path(path)).decode())
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # a panic of the library is not an Exception
        raise DataError(f"{path} cannot be read as a tokenizer: {first_line(error)}") from None
    tokenizer.encode_special_tokens = True
    return tokenizer


def end_of_text(run_dir: Path, decoder: Decoder) -> int:
    """Return the id that ends a document in a run's text; generated data have none."""
    corpus = read_env(run_dir).get("corpus", {})
    end_id = corpus.get("end_id")
    if end_id is None and "vocabulary" in corpus:
        reason = f"was trained on data={corpus['kind']}, in which no token ends a text"
        raise ConfigError("RUN_FOLDER", str(run_dir), reason)
    if end_id not in range(len(decoder.lm_head.weight)):
        raise RunFolderError(f"{run_dir / ENV} does not say which token ends a document")
    return int(end_id)


def _saved(checkpoints: Path, step: int | None) -> checkpoint.Checkpoint:
    steps = list_steps(checkpoints)
    if step is not None:
        if step not in steps:
            raise CheckpointError(f"{checkpoints} holds no step {step}; it holds {steps}")
        return checkpoint.load(checkpoints, step)

    try:
        saved = checkpoint.load_newest(checkpoints)
    except CheckpointError:
        # A run in progress may have dropped a listed checkpoint while it was being read.
        if list_steps(checkpoints) == steps:
            raise
        return _saved(checkpoints, step)
    if saved is None:
        raise CheckpointError(f"{checkpoints} holds no checkpoint yet")
    return saved
