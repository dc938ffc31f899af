"""Tests of n-gram losses against a count by hand, and of the table that sets them beside runs."""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import ngrams
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from support.records import make_records
from support.refused import refused
from support.trainers import build_trainer

from rope_exp.config.run import RunConfig
from rope_exp.data.batches import Ids
from rope_exp.evidence.records import read_records
from rope_exp.evidence.runs import ReportError

Tiny = Callable[..., RunConfig]
VOCAB = 4

ids = st.integers(0, VOCAB - 1)
read_windows = arrays(np.int64, st.tuples(st.integers(1, 5), st.integers(4, 6)), elements=ids)
held_windows = arrays(np.int64, st.tuples(st.integers(1, 5), st.integers(2, 6)), elements=ids)


def by_hand(read: Ids, held: Ids, most: int) -> list[float]:
    """Return the same losses, from dictionaries and fractions, one token at a time."""
    counts: Counter[tuple[int, ...]] = Counter()
    followers: defaultdict[tuple[int, ...], set[int]] = defaultdict(set)
    for window in read.tolist():
        for end in range(1, len(window)):
            for n in range(1, min(most, end + 1) + 1):
                gram = tuple(window[end - n + 1 : end + 1])
                counts[gram] += 1
                followers[gram[:-1]].add(gram[-1])

    def probability(context: Sequence[int], token: int, n: int) -> Fraction:
        if n == 0:
            return Fraction(1, VOCAB)
        if len(context) < n - 1:
            return probability(context, token, n - 1)
        history = tuple(context[len(context) - n + 1 :])
        shorter = probability(context, token, n - 1)
        kinds = followers[history]
        if not kinds:
            return shorter
        total = sum(counts[(*history, each)] for each in kinds)
        return (counts[(*history, token)] + len(kinds) * shorter) / (total + len(kinds))

    losses = []
    for n in range(1, most + 1):
        nats = [
            -math.log(probability(window[:end], window[end], n))
            for window in held.tolist()
            for end in range(1, len(window))
        ]
        losses.append(sum(nats) / len(nats))
    return losses


@settings(max_examples=60, deadline=None)
@given(read_windows, held_windows)
def test_tables_are_those_of_a_count_by_hand(read: Ids, held: Ids) -> None:
    found = ngrams.held_out_nats(read, held, VOCAB, 3)
    assert found == pytest.approx(by_hand(read, held, 3))


@settings(max_examples=60, deadline=None)
@given(read_windows, st.lists(ids, min_size=1, max_size=3), st.integers(1, 4))
def test_probabilities_sum_to_1(read: Ids, context: list[int], most: int) -> None:
    """For any counts, a context's probability is the sum over its continuations by one token."""

    def probability(window: list[int]) -> float:
        if len(window) == 1:
            return 1.0
        [*_, nats] = ngrams.held_out_nats(read, np.array([window]), VOCAB, most)
        return math.exp(-nats * (len(window) - 1))

    sum_of_all = sum(probability([*context, token]) for token in range(VOCAB))
    assert sum_of_all == pytest.approx(probability(context))


def test_a_window_knows_nothing_of_the_one_before() -> None:
    """If the windows were joined, the two 3s at their border would count as a pair."""
    read = np.array([[0, 1, 2, 3], [3, 2, 1, 0]])
    [_, pairs] = ngrams.held_out_nats(read, np.array([[3, 3]]), VOCAB, 2)
    assert pairs == pytest.approx(math.log(2 / (Fraction(1 + 4 * Fraction(1, 4), 6 + 4))))


# -- recorded runs ---------------------------------------------------------------------------------


def test_the_windows_are_those_that_a_run_reads(tiny: Tiny, tmp_path: Path) -> None:
    """The hash of their order is the run's; windows of another seed are refused."""
    config = tiny("train.num_steps=6")
    trainer = build_trainer(config, tmp_path / "run")
    assert trainer.train() == "finished"

    read_WS, held_NS, vocab_size = ngrams.windows(config, trainer.train_step.order_sha256)
    train = config.train
    assert read_WS.shape == (6 * train.global_batch_size, train.seq_len + 1)
    assert held_NS.shape == (train.eval_sequences, train.seq_len + 1)
    assert max(read_WS.max(), held_NS.max()) < vocab_size
    with refused("the tokens here differ from the record's", by=ReportError):
        ngrams.windows(tiny("train.num_steps=6", "seed=1"), trainer.train_step.order_sha256)


def test_a_line_has_the_tables_and_the_runs_best_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_records(tmp_path / "records", "english", rows=("nope", "qk_rope"), seeds=(0, 1))
    alike = np.array([[0, 1, 0, 1, 0]])
    monkeypatch.setattr(ngrams, "windows", lambda *_: (alike, alike, VOCAB))
    ngrams.write(["english/*"], tmp_path / "records", tmp_path / "ngrams.md")

    text = (tmp_path / "ngrams.md").read_text()
    titles, _, *lines = [line for line in text.splitlines() if line.startswith("|")]
    records = read_records(tmp_path / "records", "english")
    runs = {(run.row, run.config.seed): f"{run.loss:.4f}" for run in records}
    table = [line.strip("| ").split(" | ") for line in (titles, *lines)]
    assert [[*line[:3], *line[-2:]] for line in table] == [
        ["campaign", "tokens", "seed", "QK-RoPE", "NoPE"],
        ["english", "4e-06M", "0", runs["qk_rope", 0], runs["nope", 0]],
        ["english", "4e-06M", "1", runs["qk_rope", 1], runs["nope", 1]],
    ]
    assert "`python scripts/ngrams.py 'english/*'`" in text


def test_records_that_are_not_there_are_refused(tmp_path: Path) -> None:
    with refused("holds no record english/nope-s0", by=ReportError):
        ngrams.write(["english/nope-s0"], tmp_path, tmp_path / "ngrams.md")


def test_two_runs_of_a_variant_are_refused(tmp_path: Path) -> None:
    """A line holds one run per variant, so one of two learning rates would be lost."""
    make_records(tmp_path, "lr", rows=("nope",), seeds=(0,))
    [run] = read_records(tmp_path, "lr")
    other = replace(run, where="lr/nope-optim.lr=0.003-s0")
    with refused("lr/nope-s0 and lr/nope-optim.lr=0.003-s0 have the same variant", by=ReportError):
        ngrams.beside([run, other])


def test_hidden_tokens_are_refused(tmp_path: Path) -> None:
    make_records(
        tmp_path, "mlm", rows={"nope": ["pe=nope", "train.objective=mlm"]}, seeds=(0,), probes=()
    )
    with refused("mlm/nope-s0 does not predict the next token of text", by=ReportError):
        ngrams.beside(read_records(tmp_path, "mlm"))


def test_a_vocabulary_too_large_to_count_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_records(tmp_path, "english", rows=("nope",), seeds=(0,))
    one = np.array([[0, 1, 0, 1, 0]])
    monkeypatch.setattr(ngrams, "windows", lambda *_: (one, one, 80_000))
    with refused("of 80,000 tokens, 4-grams are not counted", by=ReportError):
        ngrams.beside(read_records(tmp_path, "english"))
