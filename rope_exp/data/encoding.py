"""Encoding of documents into token files, in batches that keep all cores busy."""

import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import BinaryIO, NamedTuple

import numpy as np
from tokenizers import Tokenizer

from rope_exp.data.documents import SIDES, TRAIN, Corpus, pieces
from rope_exp.data.meta import token_dtype
from rope_exp.data.tokenizer import cuts_at_spaces, encode, vocab_size
from rope_exp.system.console import Progress

# Characters encoded at once, enough for all cores. Encoding takes about 100 bytes a token.
BATCH_CHARS = 1 << 20


class Part(NamedTuple):
    """A document, or a part of a long one, which bounds the memory that encoding takes."""

    side: str
    text: str
    starts: bool  # true for the first part of its document
    ends: bool  # true for the last one


def write_tokens(
    corpus: Corpus, tokenizer: Tokenizer, end_id: int, files: Mapping[str, BinaryIO]
) -> dict[str, dict[str, int]]:
    """Encode every document into the file of its side, at most data.max_tokens per side.

    A split is read until its own side is full.

    Returns:
        documents, text_bytes and tokens, each by side.
    """
    counts = {what: dict.fromkeys(SIDES, 0) for what in ("documents", "text_bytes", "tokens")}
    tokens = counts["tokens"]
    max_tokens = corpus.data.max_tokens
    limit = max_tokens or sys.maxsize
    dtype = token_dtype(vocab_size(tokenizer))
    started = time.monotonic()
    progress = Progress("data", max_tokens or corpus.text_bytes or None)

    for split in corpus.splits:
        for batch in _batches(corpus.documents(split), tokenizer):
            texts = [part.text for part in batch]

            for part, ids in zip(batch, encode(tokenizer, texts), strict=True):
                if part.ends:
                    ids.append(end_id)
                num_whole = len(ids)
                ids = ids[: limit - tokens[part.side]]
                if not ids:
                    continue

                files[part.side].write(np.array(ids, dtype).tobytes())
                counts["documents"][part.side] += part.starts
                # Of a part that is cut, as many bytes as its share of tokens.
                num_bytes = len(part.text.encode()) * len(ids) // num_whole
                counts["text_bytes"][part.side] += num_bytes
                tokens[part.side] += len(ids)
                if tokens[split] == limit:
                    break

            totals = {what: sum(by_side.values()) for what, by_side in counts.items()}
            done = tokens[TRAIN] if max_tokens else totals["text_bytes"]
            progress.show(done, describe(totals, time.monotonic() - started))
            if tokens[split] == limit:
                break

    progress.close()
    return counts


def describe(totals: Mapping[str, int], seconds: float) -> str:
    """Return a summary of the text encoded in `seconds`, with its speed."""
    megabytes = totals["text_bytes"] / 1e6
    rate = megabytes / max(seconds, 1e-3)
    words = f"{totals['documents']:,} documents, {megabytes:,.0f} MB, {totals['tokens']:,} tokens"
    return f"{words}, {rate:.1f} MB/s"


def _batches(documents: Iterable[tuple[str, str]], tokenizer: Tokenizer) -> Iterator[list[Part]]:
    """Collect documents into batches; long ones are cut where the tokenizer also cuts them."""
    can_cut = cuts_at_spaces(tokenizer)
    batch: list[Part] = []
    num_chars = 0

    for side, text in documents:
        parts = list(pieces(text)) if can_cut else [text]
        for number, part in enumerate(parts, start=1):
            batch.append(Part(side, part, number == 1, number == len(parts)))
            num_chars += len(part)
            if num_chars >= BATCH_CHARS:
                yield batch
                batch = []
                num_chars = 0

    yield batch
