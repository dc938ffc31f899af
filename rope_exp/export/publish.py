"""Publication of campaigns: their records and curves as a data set, and their page as a Space.

The folder of the data set has runs.parquet (a line per run, with the text of its record),
curves.parquet (a line per logged step) and a card; the folder `space` below it has the page.
"""

import json
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from rope_exp.evidence.frames import load_metrics, load_runs
from rope_exp.evidence.records import read_records, recorded_campaigns
from rope_exp.evidence.runs import Run
from rope_exp.report.command import tables_of
from rope_exp.report.page import page
from rope_exp.system.errors import ConfigError

SPACE = "space"

CARD = """\
---
pretty_name: {title}
tags: [rope, position-encoding, rope_exp]
configs:
- config_name: runs
  data_files: runs.parquet
  default: true
- config_name: curves
  data_files: curves.parquet
---

# {title}

Training runs of rope_exp, which compares where in attention a rotary position embedding acts: on \
queries, keys, values and attention outputs, everything else equal.

```python
from datasets import load_dataset

runs = load_dataset("{place}", "runs", split="train")
curves = load_dataset("{place}", "curves", split="train")
```

{table}

## Columns

- `runs` has a line per run. `pe` is the variant and `rotate` its sites. Runs of one `seed` share \
initial weights and tokens. `val/loss` is the held-out loss of the last step in nats per \
token; it is empty for a run that diverged. Keys of the config that differ between runs are \
columns, too.
- `record` is the whole record as JSON, and ends with its own SHA-256. Write each to \
`campaign/cell.json`, and `rope-exp check-records` verifies them and says which may be compared.
- `curves` has a line per logged step: `step`, `tokens`, and the losses there. `where` is the run.

Compare runs of one campaign within a seed. `rope-exp report --campaign NAME` makes the tables \
with their tests.
"""

SPACE_CARD = """\
---
title: {title}
sdk: static
app_file: index.html
datasets: [{place}]
---
"""


def publish(campaigns: Sequence[str], records: Path, out: Path, place: str) -> None:
    """Write the data set of these campaigns, and their page, into a new folder.

    Args:
        records: the folder with the records of all campaigns.
        place: from which the card loads the data set.
    Raises:
        ConfigError: there is no record of a campaign, or `out` is not empty.
        RecordError: a record does not verify, or runs of a campaign may not be compared.
    """
    known = recorded_campaigns(records)
    for name in campaigns:
        if name not in known:
            there = ", ".join(known) or "none"
            raise ConfigError("CAMPAIGN", name, f"has no record in {records}; there is {there}")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError("--to", str(out), "holds something; name a new folder")

    found = {name: read_records(records, name) for name in campaigns}
    tables = {
        f"{name}/{level}".rstrip("/"): report
        for name, runs in found.items()
        for level, report in tables_of(runs).items()
    }
    frames = {
        "runs": pd.concat([_runs(records, name) for name in campaigns]),
        "curves": pd.concat(
            [load_metrics(records / name).assign(campaign=name) for name in campaigns]
        ),
    }
    title = f"Runs of rope_exp ({', '.join(campaigns)})"

    (out / SPACE).mkdir(parents=True)
    for name, frame in frames.items():
        typed = frame.convert_dtypes().apply(_without_lists)
        typed.to_parquet(out / f"{name}.parquet", index=False)
    card = CARD.format(title=title, place=place, table=_table(found))
    (out / "README.md").write_text(card, encoding="utf-8")
    (out / SPACE / "README.md").write_text(
        SPACE_CARD.format(title=title, place=place), encoding="utf-8"
    )
    (out / SPACE / "index.html").write_bytes(page(tables))


def _runs(records: Path, campaign: str) -> pd.DataFrame:
    """Return the line of each run, with its cell and the text of its record."""
    paths = sorted((records / campaign).glob("*.json"))
    texts = {path.stem: path.read_text(encoding="utf-8") for path in paths}
    runs = load_runs(records / campaign)
    runs.insert(0, "campaign", campaign)
    runs.insert(1, "cell", list(texts))
    runs["record"] = list(texts.values())
    return runs


def _without_lists(column: pd.Series) -> pd.Series:
    """Return a column that Parquet can hold: values of mixed types, and lists, become JSON."""
    if column.dtype != object:
        return column
    return column.map(json.dumps, na_action="ignore")


def _table(found: dict[str, list[Run]]) -> str:
    """Return the campaigns, their runs, hours and corpora, as Markdown."""
    lines = ["| campaign | runs | hours | corpus |", "|---|---:|---:|---|"]
    for name, runs in found.items():
        hours = sum(run.result["wall_s"] for run in runs) / 3600
        corpora = ", ".join(sorted({str(run.config.data.name) for run in runs}))
        lines.append(f"| {name} | {len(runs)} | {hours:.1f} | {corpora} |")
    return "\n".join(lines)
