"""The windows of each step: a pure function of (tokens, seed, step), for any number of ranks.

Training windows are T + 1 tokens long and start every T tokens, so that each token is predicted
once an epoch. Sample n of a run, counted from 0 over its stages, steps and rows, is window n mod N
of epoch n div N, where each stage has its own T. An epoch's order sorts the windows by the raw
words of a Philox counter generator keyed by (seed, epoch): numpy keeps raw bit streams stable over
its versions, unlike `Generator.permutation`.

Shapes: B global batch, T positions, W = T + 1 tokens of a window, S hashed columns (a window, and
what else was drawn), N windows.
"""

import functools
import hashlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from rope_exp.config import RunConfig
from rope_exp.corpus import TEST, TRAIN, VALIDATION, Batch, DataSet, Ints, Prepared

Tokens = NDArray[np.unsignedinteger]  # 1-D
# The seed and the step of held-out rows, so that every evaluation of every run hides the same
# tokens. Training has no step 0.
HELD_OUT = (0, 0)


def training_batch(config: RunConfig, data: DataSet, step: int) -> Batch:
    """Return the global batch of an optimizer step, the same on every rank.

    Args:
        config: the run's config, which has the seed of the order and the stages.
        data: the run's data.
        step: from 1 to train.num_steps.
    """
    seed = config.order_seed
    stage = config.train.stage_at(step)
    samples = stage.samples(step)
    if not isinstance(data, Prepared):
        return data.batch(TRAIN, samples, seed)

    windows_BW = training_ids(data.tokens[TRAIN], seed, samples, stage.seq_len)
    start_B = None
    if config.data.random_start:
        start_B = random_starts(seed, step, stage.batch_size, config.data.random_start)
    return read(config, data, windows_BW, (seed, step), start_B)


def held_out_rows(config: RunConfig, data: DataSet) -> Batch:
    """Return the rows of the held-out set with their targets, the same in every run."""
    train = config.train
    if not isinstance(data, Prepared):
        return data.batch(TEST, range(train.eval_sequences))
    windows_NW = validation_ids(data.tokens[VALIDATION], train.eval_sequences, train.seq_len)
    return read(config, data, windows_NW)


def read(
    config: RunConfig,
    data: DataSet,
    windows_BW: Ints,
    key: tuple[int, int] = HELD_OUT,
    start_B: Ints | None = None,
) -> Batch:
    """Return windows of text as a batch, by the config's treatment of documents and positions.

    Args:
        config: says whether documents are masked, positions restart and tokens are hidden.
        data: has the id that ends a document, and the number of ids.
        windows_BW: token ids, [B, T + 1].
        key: two numbers that select the random stream which hides tokens: the data seed and the
            step, or HELD_OUT.
        start_B: the first position of each row; None: 0.
    """
    batch = next_tokens(windows_BW)
    # An end-of-text token belongs to the next document, because its target is that document's first
    # token.
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

    if config.objective_module is None:
        return batch
    return config.objective_module.hidden(batch, key, data.vocab_size)


def next_tokens(windows_BW: Ints) -> Batch:
    """Return the batch that predicts every token but the first of windows of T + 1 tokens."""
    return Batch(windows_BW[:, :-1], windows_BW[:, 1:], windows_BW)


def training_ids(tokens: Tokens, seed: int, samples: Sequence[int], seq_len: int) -> Ints:
    """Return the windows of some samples of a run, [B, T + 1].

    Args:
        tokens: the training tokens.
        seed: the seed of the order.
        samples: numbers of samples, counted from 0 over the whole run.
        seq_len: T.
    """
    count = (len(tokens) - 1) // seq_len
    places = [divmod(sample, count) for sample in samples]
    windows = [epoch_order(seed, epoch, count)[place] for epoch, place in places]
    return _windows(tokens, np.array(windows), seq_len)


@functools.lru_cache(maxsize=1)
def epoch_order(seed: int, epoch: int, count: int) -> Ints:
    """Return the order of the windows in an epoch: a permutation of 0..count-1.

    It depends on nothing but the arguments.

    Args:
        seed: the seed of the order.
        epoch: counted from 0.
        count: the number of windows.
    """
    key = np.array([seed, epoch], dtype=np.uint64)
    return np.argsort(np.random.Philox(key=key).random_raw(count), kind="stable")


def validation_ids(tokens: Tokens, num_sequences: int, seq_len: int) -> Ints:
    """Return fixed windows of the held-out set, [N, T + 1].

    Args:
        tokens: the held-out tokens.
        num_sequences: the most windows to return. If there are more, these are evenly spread from
            the start.
        seq_len: T.
    """
    available = (len(tokens) - 1) // seq_len
    count = min(num_sequences, available)
    return _windows(tokens, np.arange(count) * available // count, seq_len)


def _windows(tokens: Tokens, window_N: Ints, seq_len: int) -> Ints:
    return tokens[window_N[:, None] * seq_len + np.arange(seq_len + 1)].astype(np.int64)


def chain_sha256(previous: str, ids: NDArray[np.integer]) -> str:
    """Return the hash of the order of batches, extended by one batch.

    h_s = sha256(h_{s-1} || x_s), where h_0 is empty and x_s are the ids of step s's global batch,
    row by row, as 32-bit little-endian words. So resuming needs only the last digest.
    """
    return hashlib.sha256(bytes.fromhex(previous) + ids.astype("<u4").tobytes()).hexdigest()


def random_starts(seed: int, step: int, num_rows: int, most: int) -> Ints:
    """Return the first position of each row of a step's global batch.

    Args:
        seed: the seed of the order.
        step: counted from 1.
        num_rows: the rows of the global batch.
        most: positions are uniform on 0 .. `most`.
    """
    # The counter's last word is 0 in the order of an epoch, and 2 for hidden tokens (mlm.py).
    key = np.array([seed, step], dtype=np.uint64)
    counter = np.array([0, 0, 0, 1], dtype=np.uint64)
    words_B = np.random.Philox(key=key, counter=counter).random_raw(num_rows)
    return (words_B % np.uint64(most + 1)).astype(np.int64)
