"""Build the training batches and held-out rows of a config."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from rope_exp.config.objective import num_predicted
from rope_exp.config.run import RunConfig
from rope_exp.data.batches import (
    Batch,
    Batches,
    Ids,
    next_tokens,
    num_windows,
    validation_ids,
)
from rope_exp.data.documents import TRAIN, VALIDATION
from rope_exp.data.generated import DataSet, Generated, GeneratedBatches
from rope_exp.data.masking import HELD_OUT, masked
from rope_exp.data.meta import Prepared
from rope_exp.data.places import Places, random_starts
from rope_exp.data.tasks.rows import TEST


@dataclass(frozen=True)
class TextBatches:
    """The global batch of each step of a run on text."""

    config: RunConfig
    data: Prepared

    def batch(self, step: int) -> Batch:
        """Return the batch of an optimizer step, counted from 1.

        It has windows of the step's stage, their positions and documents, and hidden tokens.
        """
        config = self.config
        seed = config.order_seed
        stage = config.train.stage_at(step)
        windows = Batches(
            self.data.tokens[TRAIN],
            seed=seed,
            batch_size=stage.batch_size,
            seq_len=stage.seq_len,
            steps_before=stage.steps_before,
            samples_before=stage.samples_before,
        )
        batch = next_tokens(windows.ids(step))

        start_B = None
        if config.data.random_start:
            # order_sha256 also covers where positions begin.
            start_B = random_starts(seed, step, stage.batch_size, config.data.random_start)
            hashed_BS = np.concatenate([batch.hashed_BS, start_B[:, None]], axis=1)
            batch = batch._replace(hashed_BS=hashed_BS)
        batch = places_of(config, self.data).placed(batch, start_B)

        if config.train.objective == "causal":
            return batch
        num_places = num_predicted(config.train, stage.seq_len)
        return masked(batch, (seed, step), num_places, self.data.vocab_size)


Source = TextBatches | GeneratedBatches


def training_source(config: RunConfig, found: DataSet) -> Source:
    """Return the source of a run's batches, which is the same for every variant.

    Raises:
        ValueError: there is no whole window of some stage's length.
    """
    if isinstance(found, Generated):
        return GeneratedBatches(found, config.order_seed, config.train.global_batch_size)
    for stage in config.train.staged:
        num_windows(found.tokens[TRAIN], stage.seq_len)
    return TextBatches(config, found)


def held_out_rows(config: RunConfig, found: DataSet) -> Batch:
    """Return the rows of the held-out set with their targets, the same in every run."""
    train = config.train
    if isinstance(found, Generated):
        return found.batch(found.rows(TEST, range(train.eval_sequences)))
    windows_NS = validation_ids(found.tokens[VALIDATION], train.eval_sequences, train.seq_len)
    return reading(config, found)(windows_NS)


def reading(config: RunConfig, found: Prepared) -> Callable[[Ids], Batch]:
    """Return a function that turns held-out windows of text, of any length, into a batch."""
    train = config.train
    places = places_of(config, found)

    def read(windows_NS: Ids) -> Batch:
        plain = places.placed(next_tokens(windows_NS))
        if train.objective == "causal":
            return plain
        num_places = num_predicted(train, plain.ids_BT.shape[1])
        return masked(plain, HELD_OUT, num_places, found.vocab_size)

    return read


def places_of(config: RunConfig, found: Prepared) -> Places:
    """Return a run's treatment of documents."""
    data = config.data
    return Places(found.corpus["end_id"], resets=data.reset_positions, masks=data.document_mask)
