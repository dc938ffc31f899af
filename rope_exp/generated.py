"""Generated data sets; the counterpart of `Prepared` for the tasks of tasks/.

Step s reads rows (s - 1) B to s B - 1 of split "train" under the data seed, so no row is repeated.
Held-out rows have one fixed seed, so they are the same for every run.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

from rope_exp.files import json_sha256
from rope_exp.identity import chosen
from rope_exp.prepare import Prepared, prepare
from rope_exp.rows import END, Facts
from rope_exp.sections import DataConfig, TokenizerConfig

HELD_OUT_SEED = 0


@dataclass(frozen=True)
class Generated:
    """The generated data set of a config."""

    data: DataConfig
    seq_len: int
    num_train_tokens = None  # the data has no end

    @property
    def facts(self) -> Facts:
        """The facts about the task."""
        assert self.data.task is not None
        return self.data.task

    @property
    def vocab_size(self) -> int:
        """The number of tokens."""
        return len(self.facts.tokens)

    @property
    def data_sha256(self) -> str:
        """The SHA-256 of everything that determines the rows, except their seed and length."""
        facts = self.facts
        return json_sha256([self.data.kind, self.data.order, facts.version, list(facts.tokens)])

    @property
    def corpus(self) -> dict[str, Any]:
        """The facts about this data set in the record."""
        tokens = list(self.facts.tokens)
        corpus: dict[str, Any] = {"name": self.data.name, "kind": self.data.kind}
        corpus |= {"version": self.facts.version, "vocabulary": tokens}
        if END in tokens:
            # It also ends a completion.
            corpus["end_id"] = tokens.index(END)
        return corpus

    @property
    def tokenizer_json(self) -> str:
        """The content of tokenizer.json, with one token per character or per word."""
        vocabulary = {token: number for number, token in enumerate(self.facts.tokens)}
        tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=""))
        tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        if max(map(len, vocabulary)) == 1:
            tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
            tokenizer.decoder = decoders.Fuse()
        text: str = tokenizer.to_str()
        return text

    def rows(self, split: str, indices: Iterable[int], seed: int = HELD_OUT_SEED) -> Any:
        """Return the task's rows of a split by their numbers, counted from 0."""
        task = chosen("tasks", self.data.kind, "data.kind")
        return task.rows(self.data, seed, split, indices, self.seq_len)


DataSet = Prepared | Generated


def open_data(data: DataConfig, tokenizer: TokenizerConfig, *, seq_len: int) -> DataSet:
    """Open the data set of a run, and prepare its corpus if necessary; errors as in `prepare`."""
    if data.task is not None:
        return Generated(data, seq_len)
    return prepare(data, tokenizer, seq_len=seq_len)
