"""Generated data sets and their batches; the counterpart of `meta.Prepared` for generated tasks.

Nothing is written and nothing is tokenised. Training rows come in the generator's order under the
data seed: step s reads rows (s - 1) B to s B - 1 of split "train", so no row is repeated. Held-out
rows have one fixed seed, so they are the same for every run.

Shapes as in `batches`; D numbers to be predicted at a place.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

from rope_exp.batches import NO_TARGET, Batch
from rope_exp.files import json_sha256
from rope_exp.prepare import Prepared, prepare
from rope_exp.rows import END, Rows, Task
from rope_exp.sections import NUM_QUERIES, DataConfig, TokenizerConfig
from rope_exp.tasks.addition import Addition
from rope_exp.tasks.copying import Copying
from rope_exp.tasks.repeats import Repeats
from rope_exp.tasks.retrieval import Retrieval
from rope_exp.tasks.spikes import SpikeRows, Spikes

HELD_OUT_SEED = 0
# Resolution at which times are hashed: their last bits may differ between machines.
HASHED_PER_S = 10**6


@dataclass(frozen=True)
class Generated:
    """The generated data set of a config.

    Attributes:
        seq_len: T.
    """

    data: DataConfig
    seq_len: int

    def task(self, seed: int) -> Task | Spikes:
        """Return the generator of one seed's rows."""
        match self.data.kind:
            case "addition":
                return Addition(seed, self.seq_len, self.data.order)
            case "copy":
                return Copying(seed, self.seq_len)
            case "repeats":
                return Repeats(seed, self.seq_len)
            case "retrieval":
                return Retrieval(seed, self.seq_len)
            case "spikes":
                return Spikes(seed, num_slots=self.seq_len - NUM_QUERIES)
        raise AssertionError(self.data.kind)

    @property
    def tokens(self) -> list[str]:
        """The vocabulary, in the order of ids."""
        task = self.task(HELD_OUT_SEED)
        if isinstance(task, Spikes):
            return [*(f"unit{number:02d}" for number in range(task.num_units)), "query", "pad"]
        return list(task.vocabulary)

    @property
    def vocab_size(self) -> int:
        """One more than the largest id."""
        return len(self.tokens)

    @property
    def data_sha256(self) -> str:
        """The SHA-256 of everything that determines the rows, except their seed and length."""
        version = self.task(HELD_OUT_SEED).version
        return json_sha256([self.data.kind, self.data.order, version, self.tokens])

    @property
    def corpus(self) -> dict[str, Any]:
        """The facts about this data set in the record."""
        facts = {
            "name": self.data.name,
            "kind": self.data.kind,
            "version": self.task(HELD_OUT_SEED).version,
            "vocabulary": self.tokens,
        }
        # The token that ends an answer ends a completion, and precedes the next example.
        return facts | {"end_id": self.tokens.index(END)} if END in self.tokens else facts

    @property
    def num_train_tokens(self) -> None:
        """None: the data is endless."""
        return None

    @property
    def tokenizer_json(self) -> str:
        """The content of tokenizer.json, with one token per character or per word."""
        vocabulary = {token: number for number, token in enumerate(self.tokens)}
        tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=""))
        is_words = max(map(len, vocabulary)) > 1
        tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        if not is_words:
            tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
            tokenizer.decoder = decoders.Fuse()
        text: str = tokenizer.to_str()
        return text

    def rows(
        self, split: str, indices: Iterable[int], seed: int = HELD_OUT_SEED
    ) -> Rows | SpikeRows:
        """Return rows of a split by their numbers, counted from 0."""
        return self.task(seed).rows(split, indices)

    def batch(self, rows: Rows | SpikeRows) -> Batch:
        """Return the batch of some rows."""
        return answers(rows) if isinstance(rows, Rows) else queries(rows, self.data.period_s)


DataSet = Prepared | Generated


def open_data(data: DataConfig, tokenizer: TokenizerConfig, *, seq_len: int) -> DataSet:
    """Open the data set of a run, and prepare its corpus if necessary.

    Raises:
        ConfigError, DataError, DiskError: see `prepare`.
    """
    if data.task is not None:
        return Generated(data, seq_len)
    return prepare(data, tokenizer, seq_len=seq_len)


def answers(rows: Rows) -> Batch:
    """Return the batch that predicts each token of an answer from the tokens before it.

    Its hash covers the tokens and the mask of predicted ones.
    """
    target_BT = np.where(rows.mask_NT, rows.ids_NS[:, 1:], NO_TARGET)
    hashed_BS = np.concatenate([rows.ids_NS, rows.mask_NT], axis=1)
    return Batch(rows.ids_NS[:, :-1], target_BT, hashed_BS)


def queries(rows: SpikeRows, period_s: float) -> Batch:
    """Return the batch that predicts the latent at the queries from all events.

    Padding is a document of its own, to which no other token attends.

    Args:
        period_s: a position is a time times 2 pi / period_s. So the fastest pair of features, which
            rotates by 1 radian per position, rotates once per period.
    """
    num_slots = rows.ids_NT.shape[1]
    place_P = np.arange(num_slots - NUM_QUERIES, num_slots)
    hashed_time_NT = np.round(rows.times_NT * HASHED_PER_S).astype(np.int64)
    return Batch(
        ids_BT=rows.ids_NT,
        target_BP=rows.latent_NQD,
        hashed_BS=np.concatenate([rows.ids_NT, hashed_time_NT], axis=1),
        place_BP=np.tile(place_P, (len(rows.ids_NT), 1)),
        position_BT=rows.times_NT * (2 * np.pi / period_s),
        document_BT=rows.is_pad_NT.astype(np.int64),
    )
