"""Compare runs that were made twice, on two machines: `python scripts/replicates.py`.

results/replicates/CAMPAIGN/CELL.json is a second record of a cell whose first one is in
results/records: the same config and seed on another device. Writes results/replicates.md.
"""

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path

import pandas as pd

from rope_exp.config.run import differing_keys
from rope_exp.evidence.records import DEFAULT_RECORDS, read_records, recorded_campaigns
from rope_exp.evidence.runs import ReportError, Run
from rope_exp.report.command import tables_of
from rope_exp.report.content import Relation
from rope_exp.report.spelling import markdown_table
from rope_exp.system.console import log
from rope_exp.system.errors import EXIT_DONE, EXIT_USAGE, RecordError
from rope_exp.system.files import write_atomically

REPLICATES = Path("results/replicates")
EQUAL = ("data_sha256", "order_sha256", "init_sha256")
ABOUT = """**Runs of {name} made twice, on two machines: the same config, seed, initial weights and order of tokens.** Losses in nats per token. The campaign's record is the first; the second is in [replicates](replicates) (`python scripts/replicates.py`).

{losses}

Second minus first: mean {mean:+.4f}, standard deviation {sd:.4f}, largest {largest:.4f} of {count} pairs.

**The published relations with the first records, and with the second where there is one** (Δ: the second variant's loss minus the first's; p is adjusted by Holm's rule).

{relations}
"""  # noqa: E501


def compare(records: Path, replicates: Path) -> str:
    """Return Markdown: the losses of each cell's two runs, and the relations with either.

    Raises:
        ReportError: a cell has no first record, or its two records differ in config, corpus,
            initial weights or tokens.
        RecordError: a record cannot be read.
    """
    parts = []
    for name in recorded_campaigns(replicates):
        first = {run.where: run for run in read_records(records, name)}
        second = {run.where: run for run in read_records(replicates, name)}
        if alone := second.keys() - first.keys():
            raise ReportError(f"{records} has no first record of {min(alone)}")
        losses = pd.DataFrame([_line(first[cell], run) for cell, run in second.items()])
        differences = losses["difference"]
        with_first, with_second = _relations(first), _relations({**first, **second})
        relations = [
            {
                "published": f"{one.judged.a} {one.published} {one.judged.b}",
                "Δ": one.judged.delta,
                "p": one.judged.p_adjusted,
                "outcome": one.outcome,
                "Δ, second": other.judged.delta,
                "p, second": other.judged.p_adjusted,
                "outcome, second": other.outcome,
            }
            for one, other in zip(with_first, with_second, strict=True)
        ]
        parts.append(
            ABOUT.format(
                name=name,
                losses=markdown_table(losses, ".4f"),
                mean=differences.mean(),
                sd=differences.std(),
                largest=differences.abs().max(),
                count=len(losses),
                relations=markdown_table(pd.DataFrame(relations), ".4f"),
            )
        )
    return "\n".join(parts)


def _line(first: Run, second: Run) -> dict[str, str | float]:
    """Check that two records are of one run made twice, and return their losses."""
    differ = [key for key in EQUAL if first.result[key] != second.result[key]]
    if differ or differing_keys(first.config.numeric, second.config.numeric, ()):
        raise ReportError(f"{first.folder} and {second.folder} are not the same run twice")
    if first.loss is None or second.loss is None:
        raise ReportError(f"{first.where} or its second run has no loss")
    return {
        "cell": Path(first.where).name,
        "first": first.env["device"],
        "loss": first.loss,
        "second": second.env["device"],
        "its loss": second.loss,
        "difference": second.loss - first.loss,
    }


def _relations(runs: Mapping[str, Run]) -> list[Relation]:
    tables = tables_of(list(runs.values()))
    return [relation for _, table in sorted(tables.items()) for relation in table.relations]


def main() -> int:
    """Run the command."""
    argparse.ArgumentParser(description=__doc__.partition("\n")[0]).parse_args()
    try:
        text = compare(DEFAULT_RECORDS, REPLICATES)
    except RecordError as error:
        log(f"error: {error}")
        return EXIT_USAGE
    write_atomically(REPLICATES.with_suffix(".md"), text)
    print(text)
    return EXIT_DONE


if __name__ == "__main__":
    sys.exit(main())
