"""`rope-exp prepare`: prepare a corpus ahead of training."""

from rope_exp.commands._parser import Parser, parse_runs
from rope_exp.corpus import Prepared


def main(argv: list[str]) -> int:
    """Prepare a corpus ahead of training, verify every block, and print a summary."""
    about = "Prepare a corpus ahead of training; only data, tokenizer and train.seq_len matter."
    _, composed = parse_runs(Parser("prepare", about), argv)

    from rope_exp.prepare import open_data

    # A sweep's first run stands for all.
    config = composed.configs[0]
    data = open_data(config.data, config.tokenizer, seq_len=config.train.seq_len)
    if isinstance(data, Prepared):
        names = f"data={config.data.name}, tokenizer={config.tokenizer.name}"
        print(f"{data.folder}: {names}, verified")
        for key in ("documents", "text_bytes", "tokens"):
            train, validation = (data.corpus[key][side] for side in ("train", "validation"))
            print(f"  {key + ':':11} {train:,} train, {validation:,} validation")
    else:
        print(f"data={config.data.name} is generated as it is read: there is nothing to prepare")
    print(f"  vocabulary: {data.vocab_size:,}")
    print(f"  sha256:     {data.data_sha256}")
    return 0
