"""Build the training batches and held-out rows of a config."""

from collections.abc import Callable

from rope_exp.config.objective import num_predicted
from rope_exp.config.run import RunConfig
from rope_exp.config.stages import Stage
from rope_exp.data.batches import (
    Batch,
    Batches,
    Ids,
    Source,
    Staged,
    next_tokens,
    validation_ids,
)
from rope_exp.data.documents import TRAIN, VALIDATION
from rope_exp.data.generated import DataSet, Generated, GeneratedBatches
from rope_exp.data.masking import Masked, held_out_masked
from rope_exp.data.meta import Prepared
from rope_exp.data.places import PlacedBatches, Places
from rope_exp.data.tasks.rows import TEST


def training_source(config: RunConfig, found: DataSet) -> Source:
    """Return the source of a run's batches, which is the same for every variant.

    Raises:
        ValueError: there is no whole window of some stage's length.
    """
    train = config.train
    if isinstance(found, Generated):
        return GeneratedBatches(found, config.order_seed, train.global_batch_size)

    sources = {stage.last_step: _of_stage(config, stage, found) for stage in train.staged}
    return Staged(sources) if len(sources) > 1 else sources[train.num_steps]


def _of_stage(config: RunConfig, stage: Stage, found: Prepared) -> Source:
    """Return the batches of one stage: windows with positions, documents and hidden tokens."""
    batches = Batches(
        found.tokens[TRAIN],
        seed=config.order_seed,
        batch_size=stage.batch_size,
        seq_len=stage.seq_len,
        steps_before=stage.steps_before,
        samples_before=stage.samples_before,
    )
    placed = PlacedBatches(
        batches,
        places_of(config, found),
        seed=config.order_seed,
        batch_size=stage.batch_size,
        random_start=config.data.random_start,
    )
    if config.train.objective == "causal":
        return placed
    return Masked(
        placed,
        seed=config.order_seed,
        batch_size=stage.batch_size,
        num_places=num_predicted(config.train, stage.seq_len),
        mask_id=found.vocab_size,
    )


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
        return held_out_masked(plain, num_predicted(train, plain.ids_BT.shape[1]), found.vocab_size)

    return read


def places_of(config: RunConfig, found: Prepared) -> Places:
    """Return a run's treatment of documents."""
    data = config.data
    return Places(found.corpus["end_id"], resets=data.reset_positions, masks=data.document_mask)
