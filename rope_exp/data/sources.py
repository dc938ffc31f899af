"""What a run reads, by its config: in training, and of the held-out set."""

from collections.abc import Callable

from rope_exp.config.run import RunConfig
from rope_exp.data.batches import Batch, Batches, Ids, Source, next_tokens, validation_ids
from rope_exp.data.documents import TRAIN, VALIDATION
from rope_exp.data.generated import DataSet, Generated, GeneratedBatches
from rope_exp.data.meta import Prepared
from rope_exp.data.places import PlacedBatches, Places
from rope_exp.data.tasks.rows import TEST


def training_source(config: RunConfig, found: DataSet) -> Source:
    """Return where a run's batches come from, whatever its variant.

    Raises:
        ValueError: there is no whole window.
    """
    train = config.train
    if isinstance(found, Generated):
        return GeneratedBatches(found, config.order_seed, train.global_batch_size)

    batches = Batches(
        found.tokens[TRAIN],
        seed=config.order_seed,
        batch_size=train.global_batch_size,
        seq_len=train.seq_len,
    )
    return PlacedBatches(
        batches,
        places_of(config, found),
        seed=config.order_seed,
        batch_size=train.global_batch_size,
        random_start=config.data.random_start,
    )


def held_out_rows(config: RunConfig, found: DataSet) -> Batch:
    """Return what is read of the held-out set, and predicted: the same in every run."""
    train = config.train
    if isinstance(found, Generated):
        return found.batch(found.rows(TEST, range(train.eval_sequences)))
    windows_NS = validation_ids(found.tokens[VALIDATION], train.eval_sequences, train.seq_len)
    return reading(config, found)(windows_NS)


def reading(config: RunConfig, found: Prepared) -> Callable[[Ids], Batch]:
    """Return how a run reads held-out windows of text, of any length: what it is to predict."""
    places = places_of(config, found)
    return lambda windows_NS: places.placed(next_tokens(windows_NS))


def places_of(config: RunConfig, found: Prepared) -> Places:
    """Return what a run makes of documents."""
    data = config.data
    return Places(found.corpus["end_id"], resets=data.reset_positions, masks=data.document_mask)
