"""Compare runs that were made twice, on two machines: `python scripts/replicates.py`.

results/replicates/CAMPAIGN/CELL.json is a second record of a cell whose first one is in
results/records: the same config and seed on another device. Writes results/replicates.md.
"""

import sys
from pathlib import Path

import pandas as pd

from rope_exp.config.run import differing_keys
from rope_exp.evidence.records import DEFAULT_RECORDS, read_records, recorded_campaigns
from rope_exp.evidence.runs import ReportError
from rope_exp.report.spelling import markdown_table
from rope_exp.system.files import write_atomically

REPLICATES = Path("results/replicates")
EQUAL = ("data_sha256", "order_sha256", "init_sha256")
ABOUT = """**Runs made twice, on two machines: the same config, seed, initial weights and order of tokens.** Losses in nats per token. The record of a campaign is the first; the second is in [replicates](replicates) (`python scripts/replicates.py`).

{table}

Second minus first: mean {mean:+.4f}, standard deviation {sd:.4f}, largest {largest:.4f} of {count} pairs.
"""  # noqa: E501


def compare(records: Path, replicates: Path) -> str:
    """Return the losses of both runs of each cell that has two, as Markdown.

    Raises:
        ReportError: two records of a cell are not of one config, or did not read the same tokens.
        RecordError: a record cannot be read.
    """
    lines = []
    for name in recorded_campaigns(replicates):
        first = {Path(run.where).name: run for run in read_records(records, name)}
        for second in read_records(replicates, name):
            cell = Path(second.where).name
            run = first[cell]
            differ = [key for key in EQUAL if run.result[key] != second.result[key]]
            if differ or differing_keys(run.config.numeric, second.config.numeric, ()):
                raise ReportError(f"{run.where} and {second.where} are not the same run twice")
            if run.loss is None or second.loss is None:
                raise ReportError(f"{run.where} or {second.where} has no loss")
            lines.append(
                {
                    "campaign": name,
                    "cell": cell,
                    "first": run.env["device"],
                    "loss": run.loss,
                    "second": second.env["device"],
                    "its loss": second.loss,
                    "difference": second.loss - run.loss,
                }
            )
    found = pd.DataFrame(lines)
    differences = found["difference"]
    return ABOUT.format(
        table=markdown_table(found, ".4f"),
        mean=differences.mean(),
        sd=differences.std(),
        largest=differences.abs().max(),
        count=len(found),
    )


def main() -> int:
    """Run the command."""
    text = compare(DEFAULT_RECORDS, REPLICATES)
    write_atomically(REPLICATES.with_suffix(".md"), text)
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
