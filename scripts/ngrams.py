"""Compare recorded losses with those of n-gram tables of one to four tokens.

    python scripts/ngrams.py 'warmup/*-s0' 'table_warmup/*-s0'

A table counts the tokens that runs read, in their windows, and is evaluated on the same held-out
windows. It knows only the tokens right before another: a variant that ends at the loss of token
pairs may have learned no more than these.

Shapes: W windows read, N held out, S = T + 1 tokens in each.
"""

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from rope_exp.config.run import RunConfig
from rope_exp.data.batches import Ids, chain_sha256
from rope_exp.data.generated import Generated, open_data
from rope_exp.data.sources import held_out_rows, training_batch
from rope_exp.evidence.records import read_record
from rope_exp.evidence.runs import ReportError, Run
from rope_exp.report.spelling import markdown_table, millions
from rope_exp.system.console import log
from rope_exp.system.errors import EXIT_DONE, EXIT_USAGE, ConfigError, DataError, RecordError
from rope_exp.system.files import write_atomically

RECORDS = Path("results/records")
OUT = Path("results/ngrams.md")
MOST = 4

ABOUT = """# Losses of n-gram tables

Loss on the held-out windows, in nats per token, of n-gram tables (n = 1 to 4, Witten and Bell's smoothing) and of the runs beside them. The tables count the tokens that these runs read in training. Made by `python scripts/ngrams.py {patterns}`.

{table}
"""  # noqa: E501


def beside(runs: Sequence[Run]) -> dict[str, str | float]:
    """Return a line of the table: losses of counts over the tokens of runs, and the runs' own.

    Args:
        runs: at least one, all on the same tokens in the same order.
    Raises:
        RecordError: a run does not predict the next token of text, is a second one of its
            variant, or has too large a vocabulary; or the tokens here differ.
        DataError: there is no corpus.
    """
    first = runs[0]
    if first.config.train.objective != "causal" or first.config.data.task is not None:
        raise ReportError(f"{first.where} does not predict the next token of text")
    named: dict[str, Run] = {}
    for run in runs:
        if (other := named.setdefault(run.variant_name, run)) is not run:
            raise ReportError(
                f"{other.where} and {run.where} have the same variant and tokens, but a line holds "
                "one run: use a pattern that matches only one of them"
            )
    read_WS, held_NS, vocab_size = windows(first.config, first.result["order_sha256"])
    if vocab_size**MOST >= 2**63:
        raise ReportError(f"{first.where}: of {vocab_size:,} tokens, {MOST}-grams are not counted")

    losses = held_out_nats(read_WS, held_NS, vocab_size, MOST)
    line: dict[str, str | float] = {
        "campaign": first.group,
        "tokens": millions(read_WS[:, 1:].size),
        "seed": ", ".join(sorted({str(run.config.seed) for run in runs})),
    }
    line |= {f"n = {n}": loss for n, loss in enumerate(losses, 1)}
    found = {name: run.loss for name, run in named.items() if run.loss is not None}
    return line | dict(sorted(found.items(), key=lambda each: each[1]))


def windows(config: RunConfig, order_sha256: str) -> tuple[Ids, Ids, int]:
    """Return the windows that a run read, those held out, and the size of the vocabulary.

    Raises:
        RecordError: its order of tokens differed.
        DataError: there is no corpus.
    """
    train = config.train
    data = open_data(config.data, config.tokenizer, seq_len=train.seq_len)
    assert not isinstance(data, Generated), "a campaign's text is prepared"

    found = ""
    read = []
    for step in range(1, train.num_steps + 1):
        batch = training_batch(config, data, step)
        found = chain_sha256(found, batch.hashed_BS)
        read.append(batch.hashed_BS)
    if found != order_sha256:
        raise ReportError(f"the tokens here differ from the record's: order_sha256 is {found}")
    return np.concatenate(read), held_out_rows(config, data).hashed_BS, data.vocab_size


def held_out_nats(read_WS: Ids, held_NS: Ids, vocab_size: int, most: int) -> list[float]:
    """Return the mean loss of tables of 1 to `most` tokens on every token except a window's first.

    Equation: p_n(x | h) = (c(h x) + t(h) p_{n-1}(x | h')) / (c(h) + t(h)), where c counts, t(h) is
    the number of distinct tokens that followed h, h' is h without its first token, and p_0 is
    uniform (Witten and Bell 1991, interpolated). If a window holds fewer than n tokens so far, p_n
    is p_{n-1}.

    Args:
        read_WS, held_NS: ids below `vocab_size`, and vocab_size^most must be below 2^63; the
            windows that were read have `most` tokens or more.
    """
    assert read_WS.shape[1] >= most, "no window holds so many tokens"
    assert vocab_size**most < 2**63, "the grams of so many tokens are no 64-bit integers"
    p_NT = np.full((len(held_NS), held_NS.shape[1] - 1), 1 / vocab_size)
    losses = []
    for n in range(1, most + 1):
        grams, counts = np.unique(_grams(read_WS, n, vocab_size), return_counts=True)
        contexts, first = np.unique(grams // vocab_size, return_index=True)
        totals = np.add.reduceat(counts, first)
        kinds = np.diff(first, append=len(grams))

        asked = _grams(held_NS, n, vocab_size)
        count = _counted(asked, grams, counts)
        total = _counted(asked // vocab_size, contexts, totals)
        kind = _counted(asked // vocab_size, contexts, kinds)

        shorter = p_NT[:, p_NT.shape[1] - asked.shape[1] :]
        is_known = total > 0
        shorter[is_known] = (count + kind * shorter)[is_known] / (total + kind)[is_known]
        losses.append(float(-np.log(p_NT).mean()))
    return losses


def _grams(ids_WS: Ids, n: int, vocab_size: int) -> Ids:
    """Return the n tokens that end at each predicted place, as one number, one row per window.

    A window's first token is not predicted, so there are as many pairs as single tokens.
    """
    ends = max(ids_WS.shape[1] - max(n - 1, 1), 0)
    grams: Ids = np.zeros((len(ids_WS), ends), dtype=np.int64)
    for back in reversed(range(n)):
        last = ids_WS.shape[1] - back
        grams = grams * vocab_size + ids_WS[:, last - ends : last]
    return grams


def _counted(asked: Ids, known: Ids, counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the count of each `asked` number; 0 if it is not known."""
    place = np.searchsorted(known, asked).clip(max=len(known) - 1)
    return np.where(known[place] == asked, counts[place], 0)


def write(patterns: Sequence[str], records: Path, out: Path) -> None:
    """Write the table of the records that match some patterns, CAMPAIGN/CELL each.

    Raises:
        RecordError: a pattern matches none, or as in `beside`.
        DataError: there is no corpus.
    """
    # Campaigns can share an order of tokens, but each has its own line.
    alike: dict[tuple[str, str], list[Run]] = {}
    for pattern in patterns:
        found = sorted(records.glob(f"{pattern}.json"))
        if not found:
            raise ReportError(f"{records} holds no record {pattern}")
        for run in map(read_record, found):
            alike.setdefault((run.group, run.result["order_sha256"]), []).append(run)

    lines = []
    for runs in alike.values():
        lines.append(beside(runs))
        log(", ".join(f"{key} {value}" for key, value in lines[-1].items()))
    table = markdown_table(pd.DataFrame(lines), ".4f")
    spelled = " ".join(map(shlex.quote, patterns))
    write_atomically(out, ABOUT.format(patterns=spelled, table=table))


def main() -> int:
    """Run the command on this process's command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "patterns",
        nargs="+",
        metavar="CAMPAIGN/CELL",
        help="names of records; '*' matches anything",
    )
    parser.add_argument("--records", type=Path, default=RECORDS, help="(%(default)s)")
    parser.add_argument("--out", type=Path, default=OUT, help="(%(default)s)")
    asked = parser.parse_args()

    try:
        write(asked.patterns, asked.records, asked.out)
    except (ConfigError, DataError, RecordError) as error:
        log(f"error: {error}")
        return EXIT_USAGE
    return EXIT_DONE


if __name__ == "__main__":
    sys.exit(main())
