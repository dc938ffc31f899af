"""Prepare a corpus ahead of training: `python scripts/prepare_data.py data=files data.path=... tokenizer=bpe_8k`.

Takes the overrides that train.py takes; only data, tokenizer and train.seq_len matter. Verifies every block, prints a
summary. Exit codes: 0 prepared, 1 the network or the disk failed, 2 bad config.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from rope_exp.config.compose import run_config
from rope_exp.data.prepare import prepare
from rope_exp.system.errors import ConfigError, DataError


def main(overrides: list[str]) -> int:
    """Compose, prepare, verify, print."""
    if {"-h", "--help"} & set(overrides):
        print(__doc__)
        return 0
    try:
        config = run_config(overrides)
        prepared = prepare(config.data, config.tokenizer, seq_len=config.train.seq_len)
        prepared.verify()
    except (ConfigError, DataError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2 if isinstance(error, ConfigError) else 1
    corpus = prepared.corpus
    print(
        f"{prepared.folder}: data={config.data.name}, tokenizer={config.tokenizer.name}, verified"
    )
    for side in ("train", "validation"):
        documents, text_bytes, tokens = (
            corpus[what][side] for what in ("documents", "text_bytes", "tokens")
        )
        print(
            f"  {side + ':':11} {documents:,} documents, {text_bytes:,} bytes of text, {tokens:,} tokens"
        )
    print(f"  vocabulary: {prepared.vocab_size:,}")
    print(f"  sha256:     {prepared.data_sha256}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
