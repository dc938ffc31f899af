"""Build the training batches and held-out rows of a config, the same for every variant."""

import numpy as np

from rope_exp.batches import (
    Batch,
    Ids,
    next_tokens,
    placed,
    random_starts,
    training_ids,
    validation_ids,
)
from rope_exp.config import RunConfig
from rope_exp.corpora import TRAIN, VALIDATION
from rope_exp.generated import DataSet, Generated
from rope_exp.prepare import Prepared
from rope_exp.rows import TEST

# The seed and the step of held-out rows, so that every evaluation of every run hides the same
# tokens. Training has no step 0.
HELD_OUT = (0, 0)


def training_batch(config: RunConfig, found: DataSet, step: int) -> Batch:
    """Return the global batch of an optimizer step, counted from 1; no generated row is repeated.

    Raises:
        ValueError: there is no whole window of the stage's length.
    """
    seed = config.order_seed
    stage = config.train.stage_at(step)
    samples = stage.samples(step)
    if isinstance(found, Generated):
        return found.batch(TRAIN, samples, seed)
    windows_BS = training_ids(found.tokens[TRAIN], seed, samples, stage.seq_len)
    start_B = None
    if config.data.random_start:
        start_B = random_starts(seed, step, stage.batch_size, config.data.random_start)
    return read(config, found, windows_BS, (seed, step), start_B)


def held_out_rows(config: RunConfig, found: DataSet) -> Batch:
    """Return the rows of the held-out set with their targets, the same in every run."""
    train = config.train
    if isinstance(found, Generated):
        return found.batch(TEST, range(train.eval_sequences))
    windows_NS = validation_ids(found.tokens[VALIDATION], train.eval_sequences, train.seq_len)
    return read(config, found, windows_NS)


def read(
    config: RunConfig,
    found: Prepared,
    windows_BS: Ids,
    key: tuple[int, int] = HELD_OUT,
    start_B: Ids | None = None,
) -> Batch:
    """Return windows of text, of any length, with their positions, documents and hidden tokens.

    Args:
        key: of the random stream that hides tokens.
        start_B: the first position of each row; None: 0. order_sha256 covers it, too.
    """
    batch = next_tokens(windows_BS)
    if start_B is not None:
        hashed_BS = np.concatenate([batch.hashed_BS, start_B[:, None]], axis=1)
        batch = batch._replace(hashed_BS=hashed_BS)
    batch = placed(batch, config.data, found.corpus["end_id"], start_B)
    if config.own_objective is None:
        return batch
    hidden: Batch = config.own_objective.hidden(batch, key, found.vocab_size)
    return hidden
