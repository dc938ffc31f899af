"""Measure the preparation: `python scripts/bench_prepare.py [FILE.parquet]`; without a file, the embedded corpus.

Prints the throughput of rope_exp.data (reading, hashing, encoding, writing) beside that of plain tokenizers on the same
text, already in memory, with the same tokenizer, in alternating rounds of one process: one `encode_batch_fast` of all,
and one a thousand texts, which is faster. Then the preparation's peak memory on the text and on ten times the text,
each in a process of its own. Linux only (it reads /proc).
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tokenizers import Tokenizer

from rope_exp.config.compose import run_config
from rope_exp.data.documents import SIDES, Corpus
from rope_exp.data.encoding import write_tokens
from rope_exp.data.prepare import open_corpus
from rope_exp.data.store import TokenFile
from rope_exp.data.tokenizer import (
    end_of_text_id,
    load_tokenizer,
    token_dtype,
    train_bpe,
    vocab_size,
)
from rope_exp.system.files import write_atomically


def corpus_of(path: str, column: str, repeats: int) -> Corpus:
    """The training documents of one file, or of the embedded corpus if it is "", `repeats` times over."""
    files = ["data=files", f"data.path='{Path(path).resolve()}'", f"data.text_column={column}"]
    config = run_config(files if path else ["data=stdlib"])
    corpus = open_corpus(config.data)
    read = corpus.splits["train"]
    repeated = {"train": lambda: (text for _ in range(repeats) for text in read())}
    return Corpus(config.data, repeated)


def prepare_once(corpus: Corpus, tokenizer: Tokenizer) -> tuple[float, int]:
    """Seconds, and bytes of text."""
    dtype = token_dtype(vocab_size(tokenizer))
    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        with (
            TokenFile(Path(folder, "train"), dtype) as train,
            TokenFile(Path(folder, "validation"), dtype) as held,
        ):
            files = dict(zip(SIDES, (train, held), strict=True))
            counts = write_tokens(corpus, tokenizer, end_of_text_id(tokenizer), files, None)
        return time.perf_counter() - started, sum(counts["text_bytes"].values())


def peak_mib(arguments: argparse.Namespace, tokenizer: Path, repeats: int) -> int:
    """Peak resident memory of a child that prepares."""
    command = [sys.executable, __file__, arguments.path, "--column", arguments.column]
    child = subprocess.run(
        [*command, "--child", str(tokenizer), str(repeats)],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return int(child.stdout)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "path", nargs="?", default="", help="a Parquet file; default: the embedded corpus"
    )
    parser.add_argument("--column", default="text")
    parser.add_argument("--vocab-size", type=int, default=8192)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--child", nargs=2, metavar=("TOKENIZER", "REPEATS"), help=argparse.SUPPRESS
    )
    arguments = parser.parse_args()
    if arguments.child:
        tokenizer_path, repeats = arguments.child
        prepare_once(
            corpus_of(arguments.path, arguments.column, int(repeats)),
            load_tokenizer(tokenizer_path),
        )
        status = Path(
            "/proc/self/status"
        ).read_text()  # getrusage would report the parent's peak, from before exec
        print(int(status.split("VmHWM:")[1].split()[0]) // 1024)
        return

    corpus = corpus_of(arguments.path, arguments.column, 1)
    config = run_config(
        ["tokenizer=bpe_8k", f"tokenizer.vocab_size={arguments.vocab_size}"]
    ).tokenizer
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "tokenizer.json")
        write_atomically(path, train_bpe(config, corpus.splits["train"]()).to_str())
        memory = {repeats: peak_mib(arguments, path, repeats) for repeats in (1, 10)}
        tokenizer = load_tokenizer(path)
    texts = list(corpus.splits["train"]())
    num_bytes = sum(len(text.encode()) for text in texts)
    ours: list[float] = []
    plain: dict[str, list[float]] = {"at once": [], "by thousands": []}
    for _ in range(arguments.rounds):
        seconds, same_bytes = prepare_once(corpus, tokenizer)
        assert same_bytes == num_bytes
        ours.append(seconds)
        for how, size in (("at once", len(texts)), ("by thousands", 1000)):
            num_tokens, started = 0, time.perf_counter()
            for first in range(0, len(texts), size):
                encodings = tokenizer.encode_batch_fast(
                    texts[first : first + size], add_special_tokens=False
                )
                num_tokens += sum(len(encoding.ids) for encoding in encodings)
            plain[how].append(time.perf_counter() - started)
    print(
        f"{num_bytes / 1e6:.1f} MB of text, {os.cpu_count()} cores, medians of {arguments.rounds} rounds"
    )
    print(
        f"prepare: {num_bytes / 1e6 / median(ours):.2f} MB/s, {num_tokens / median(ours):,.0f} tokens/s"
    )
    for how, times in plain.items():
        ratio = median(other / own for own, other in zip(ours, times, strict=True))
        print(
            f"plain tokenizers, {how}: {num_bytes / 1e6 / median(times):.2f} MB/s, {ratio:.2f} times our time"
        )
    print(f"peak memory: {memory[1]} MiB; on ten times the text {memory[10]} MiB")


if __name__ == "__main__":
    main()
