"""`rope-exp prepare`: prepare a corpus ahead of training."""

from rope_exp.commands._parser import Parser, configs_of

# The counts that are printed for each side: key in the corpus's record, and label.
COUNTED = {"documents": "documents", "text_bytes": "bytes of text", "tokens": "tokens"}


def main(words: list[str]) -> int:
    """Prepare a corpus ahead of training, verify every block, and print a summary."""
    from rope_exp.generated import Generated, open_data

    about = "Prepare a corpus ahead of training; only data, tokenizer and train.seq_len matter."
    # A sweep's first run stands for all.
    config = configs_of(Parser("prepare", about), words)[0]
    found = open_data(config.data, config.tokenizer, seq_len=config.train.seq_len)
    if isinstance(found, Generated):
        print(f"data={config.data.name} is generated as it is read: there is nothing to prepare")
    else:
        print(
            f"{found.folder}: data={config.data.name}, tokenizer={config.tokenizer.name}, verified"
        )
        for side in ("train", "validation"):
            counts = [f"{found.corpus[what][side]:,} {said}" for what, said in COUNTED.items()]
            label = f"{side}:"
            print(f"  {label:11} {', '.join(counts)}")
    print(f"  vocabulary: {found.vocab_size:,}")
    print(f"  sha256:     {found.data_sha256}")
    return 0
