"""Build the training batches and held-out rows of a config, the same for every variant."""

import numpy as np

from rope_exp.batches import Batch, Ints, next_tokens, random_starts, training_ids, validation_ids
from rope_exp.config import RunConfig
from rope_exp.corpora import TRAIN, VALIDATION
from rope_exp.generated import DataSet, Generated
from rope_exp.prepare import Prepared
from rope_exp.rows import TEST

# The seed and the step of held-out rows, so that every evaluation of every run hides the same
# tokens. Training has no step 0.
HELD_OUT = (0, 0)


def training_batch(config: RunConfig, data: DataSet, step: int) -> Batch:
    """Return the global batch of an optimizer step, counted from 1, without repeated rows."""
    seed = config.order_seed
    stage = config.train.stage_at(step)
    samples = stage.samples(step)
    if isinstance(data, Generated):
        generated: Batch = data.rows(TRAIN, samples, seed).batch
        return generated
    windows_BS = training_ids(data.tokens[TRAIN], seed, samples, stage.seq_len)
    start_B = None
    if config.data.random_start:
        start_B = random_starts(seed, step, stage.batch_size, config.data.random_start)
    return read(config, data, windows_BS, (seed, step), start_B)


def held_out_rows(config: RunConfig, data: DataSet) -> Batch:
    """Return the rows of the held-out set with their targets, the same in every run."""
    train = config.train
    if isinstance(data, Generated):
        generated: Batch = data.rows(TEST, range(train.eval_sequences)).batch
        return generated
    windows_NS = validation_ids(data.tokens[VALIDATION], train.eval_sequences, train.seq_len)
    return read(config, data, windows_NS)


def read(
    config: RunConfig,
    data: Prepared,
    windows_BS: Ints,
    key: tuple[int, int] = HELD_OUT,
    start_B: Ints | None = None,
) -> Batch:
    """Return windows of text with their positions from `start_B` on, documents and hidden tokens.

    Args:
        key: of the random stream that hides tokens.
    """
    batch = next_tokens(windows_BS)
    # A document's number rises by 1 where the document begins.
    document_BT: Ints = (batch.ids_BT == data.corpus["end_id"]).cumsum(axis=1)
    if config.data.document_mask:
        batch = batch._replace(document_BT=document_BT)

    position_BT = np.arange(batch.ids_BT.shape[1])[None]
    if config.data.reset_positions:
        begins_BT = np.diff(document_BT, axis=1, prepend=-1) != 0
        position_BT = position_BT - np.maximum.accumulate(position_BT * begins_BT, axis=1)
        batch = batch._replace(position_BT=position_BT)
    if start_B is not None:
        hashed_BS = np.concatenate([batch.hashed_BS, start_B[:, None]], axis=1)
        batch = batch._replace(hashed_BS=hashed_BS, position_BT=start_B[:, None] + position_BT)

    if config.own_objective is None:
        return batch
    hidden: Batch = config.own_objective.hidden(batch, key, data.vocab_size)
    return hidden
