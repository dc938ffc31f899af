"""What a run reads, by its config: in training, and of the held-out set."""

from rope_exp.config.objective import num_predicted
from rope_exp.config.run import RunConfig
from rope_exp.config.sections import TrainConfig
from rope_exp.config.stages import Stage
from rope_exp.data.batches import Batch, Batches, Ids, IdSource, Source, Staged, next_tokens
from rope_exp.data.masking import Masked, held_out_masked


def training_source(config: RunConfig, tokens: IdSource, vocab_size: int) -> Source:
    """Return where a run's batches come from, whatever its variant.

    Args:
        tokens: of the corpus's training side.
        vocab_size: the tokenizer's.
    Raises:
        ValueError: there is no whole window of some stage's length.
    """
    stages = config.train.staged
    sources = {stage.last_step: _of_stage(config, stage, tokens, vocab_size) for stage in stages}
    return Staged(sources) if len(sources) > 1 else sources[config.train.num_steps]


def held_out_rows(train: TrainConfig, windows_NS: Ids, vocab_size: int) -> Batch:
    """Return what is read of held-out windows, and predicted: the same in every run.

    Args:
        windows_NS: of T + 1 tokens.
        vocab_size: the tokenizer's.
    """
    plain = next_tokens(windows_NS)
    if train.objective == "causal":
        return plain
    return held_out_masked(plain, num_predicted(train, plain.ids_BT.shape[1]), vocab_size)


def _of_stage(config: RunConfig, stage: Stage, tokens: IdSource, vocab_size: int) -> Source:
    plain = Batches(
        tokens,
        seed=config.order_seed,
        batch_size=stage.batch_size,
        seq_len=stage.seq_len,
        steps_before=stage.steps_before,
        samples_before=stage.samples_before,
    )
    if config.causal:
        return plain
    return Masked(
        plain,
        seed=config.order_seed,
        batch_size=stage.batch_size,
        num_places=num_predicted(config.train, stage.seq_len),
        mask_id=vocab_size,
    )
