"""Publication of campaigns: their records and curves as a data set, and their page as a Space.

The folder of the data set has runs.parquet (a line per run, with the text of its record),
curves.parquet (a line per logged step) and a card; the folder `space` below it has the page.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from rope_exp.evidence.frames import metrics_frame, runs_frame
from rope_exp.evidence.records import read_records, recorded_campaigns
from rope_exp.evidence.runs import Run
from rope_exp.report.command import tables_of
from rope_exp.report.page import page
from rope_exp.system.errors import ConfigError, first_line
from rope_exp.system.files import check_new_folder

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

- `runs` has a line per run. `pe` is the variant and `rotate` its sites. `val/loss` is the \
held-out loss of the last step, in `unit`; it is empty for a run that diverged. Keys of the config \
that differ between these runs are columns, too; lists are written as JSON.
- `record` is the whole record as JSON, with its own SHA-256. Write each to `{{where}}.json`, and \
`rope-exp check-records` verifies them and says which may be compared.
- Runs with equal `init_sha256`, `order_sha256` and `data_sha256` share initial weights, the order \
of tokens and the text.
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
        ConfigError: there is no record of a campaign, or `out` is not empty or cannot be written.
        RecordError: a record does not verify, or runs of a campaign may not be compared.
    """
    known = recorded_campaigns(records)
    for name in campaigns:
        if name not in known:
            there = ", ".join(known) or "none"
            raise ConfigError("CAMPAIGN", name, f"has no record in {records}; there is {there}")
    check_new_folder("--to", out)

    found = {name: read_records(records, name) for name in dict.fromkeys(campaigns)}
    tables = {
        f"{name}/{level}".rstrip("/"): report
        for name, runs in found.items()
        for level, report in tables_of(runs).items()
    }
    runs = [run for each in found.values() for run in each]
    frames = {"runs": _lines(runs), "curves": metrics_frame(runs)}
    names = ", ".join(found) if len(found) < 4 else f"{len(found)} campaigns"
    title = f"Runs of rope_exp ({names})"
    texts = {"README.md": CARD.format(title=title, place=place, table=_table(found))}
    if tables:
        texts[f"{SPACE}/README.md"] = SPACE_CARD.format(title=title, place=place)
        texts[f"{SPACE}/index.html"] = page(tables, runs, has_files=False).decode()

    try:
        out.mkdir(parents=True, exist_ok=True)
        for name, frame in frames.items():
            typed = frame.convert_dtypes().apply(_of_one_type)
            typed.to_parquet(out / f"{name}.parquet", index=False)
        for file, text in texts.items():
            (out / file).parent.mkdir(exist_ok=True)
            (out / file).write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError("--to", str(out), f"cannot be written: {first_line(error)}") from None


def _lines(runs: Sequence[Run]) -> pd.DataFrame:
    """Return the line of each run, with its unit and the text of its record."""
    lines = runs_frame(runs)
    lines.insert(1, "unit", [run.config.data.unit for run in runs])
    lines["record"] = [run.folder.read_text(encoding="utf-8") for run in runs]
    return lines


def _of_one_type(column: "pd.Series[Any]") -> "pd.Series[Any]":
    """Return a column that Parquet can hold: lists become JSON, and values of mixed types text."""
    if column.dtype != object:
        return column

    def spelled(value: Any) -> str:
        return json.dumps(value) if isinstance(value, list) else str(value)

    return column.map(spelled, na_action="ignore")


def _table(found: dict[str, list[Run]]) -> str:
    """Return the campaigns, their runs, hours and corpora, as Markdown."""
    lines = ["| campaign | runs | hours | corpus |", "|---|---:|---:|---|"]
    for name, runs in found.items():
        hours = sum(run.result["wall_s"] for run in runs) / 3600
        corpora = ", ".join(sorted({str(run.config.data.name) for run in runs}))
        lines.append(f"| {name} | {len(runs)} | {hours:.1f} | {corpora} |")
    return "\n".join(lines)
