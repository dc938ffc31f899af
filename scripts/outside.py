"""Train cells of a campaign by code that is not ours, and hold the losses against its records.

    python scripts/outside.py train --rows qk_rope nope --seeds 0
    python scripts/outside.py compare

The model is transformers' LlamaForCausalLM, its attention patched to rotate other sites; loop,
optimizer, schedule, loss and evaluation are those of transformers' Trainer. Ours are the tokens and
their order, and the initial weights, so that what a run ends at stands beside the record of the
same cell. A run leaves <out>/trainer/CELL.json, and is not made again where that is; `compare`
makes trainer.md and trainer.csv from these and the records alone.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from rope_exp.config.campaign import PRIMARY, load_campaign
from rope_exp.evidence.comparable import comparable
from rope_exp.evidence.contrasts import Losses, compare, kendall_tau
from rope_exp.evidence.layout import measure
from rope_exp.evidence.published import REFERENCE
from rope_exp.evidence.records import read_records
from rope_exp.evidence.runs import ReportError, Run
from rope_exp.report.spelling import markdown_table
from rope_exp.system.console import log
from rope_exp.system.errors import EXIT_DONE, EXIT_USAGE, ConfigError, DataError, RecordError
from rope_exp.system.files import read_json, write_atomically, write_json

RECORDS = Path("results/records")
RUNS = Path("results/runs")
OUT = Path("results/outside")

ABOUT = """# The same runs by other code

`python scripts/outside.py train` trains cells of `{campaign}` with transformers' Trainer and LlamaForCausalLM, whose attention is patched to rotate other sites: eager, with its own loop, AdamW, schedule, loss and evaluation. The tokens, their order and the initial weights are those of our records, which hashes prove. transformers {transformers}, torch {torch}. Made by `python scripts/outside.py compare`.

{cells}

Theirs minus ours: {mean:+.4f} in the mean, deviating by {deviation:.4f}, at most {largest:.4f}. The residual of all runs of the campaign deviates by {noise}.

Differences to QK within a seed (means):

{contrasts}

Kendall's tau of the two orders of rows, over the seeds that all have: {order}.
"""  # noqa: E501


def train(campaign: str, rows: Sequence[str], seeds: Sequence[int], out: Path) -> None:
    """Train those cells that have no file yet.

    Raises:
        ConfigError: the campaign has no such row.
        DataError: there is no corpus.
    """
    cells = [cell for cell in load_campaign(campaign, None, RUNS).cells if cell.row in rows]
    if unknown := sorted(set(rows) - {cell.row for cell in cells}):
        raise ConfigError("--rows", unknown[0], f"is no row of the campaign {campaign}")

    for cell in cells:
        path = out / "trainer" / f"{cell.name}.json"
        if cell.config.seed not in seeds or path.exists():
            continue
        # Slow, and only here: a comparison needs records alone.
        from outside_trainer import train_cell

        log(f"{cell.name}: training by transformers' Trainer")
        found = train_cell(cell.config)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, {"campaign": campaign, "row": cell.row, "seed": cell.config.seed, **found})
        log(f"{cell.name}: loss {found['val/loss']:.4f}, {found['wall_s']:.0f} s")


def comparison(records: Path, out: Path) -> dict[str, str]:
    """Return trainer.md and trainer.csv.

    Raises:
        ReportError: there are no runs, or one is not of the weights and tokens of its record.
    """
    paths = sorted((out / "trainer").glob("*.json"))
    if not paths:
        raise ReportError(f"{out / 'trainer'} holds no run; `train` makes them")
    found = {path: read_json(path) for path in paths}
    campaigns = {values["campaign"] for values in found.values()}
    recorded = [run for name in sorted(campaigns) for run in read_records(records, name)]
    of_cell = {(run.group, run.row, run.config.seed): run for run in recorded}

    theirs: dict[str, dict[int, float]] = {}
    ours: dict[str, dict[int, float]] = {}
    names = {}
    for path, values in found.items():
        run = of_cell.get((values["campaign"], values["row"], values["seed"]))
        _check_alike(path, values, run)
        assert run is not None
        theirs.setdefault(values["row"], {})[values["seed"]] = values["val/loss"]
        ours.setdefault(values["row"], {})[values["seed"]] = run.result["val/loss"]
        names[values["row"]] = run.variant_name

    cells = _cells(theirs, ours, names)
    noise = measure({row: each.losses for row, each in comparable(recorded, ["pe"]).items()})
    apart = cells["theirs - ours"]
    text = ABOUT.format(
        campaign=", ".join(sorted(campaigns)),
        transformers=_all_of(found, "transformers"),
        torch=_all_of(found, "torch"),
        cells=markdown_table(cells, ".4f"),
        mean=apart.mean(),
        deviation=apart.std(),
        largest=apart.abs().max(),
        noise="unknown" if noise is None else f"{noise.deviation:.4f}",
        contrasts=markdown_table(_contrasts(theirs, ours, names), "+.4f"),
        order=_order(theirs, ours),
    )
    return {"trainer.md": text, "trainer.csv": cells.to_csv(index=False, float_format="%.6f")}


def _check_alike(path: Path, values: Mapping[str, Any], run: Run | None) -> None:
    """Refuse a run that has no record, or other weights, tokens or number of steps."""
    if run is None:
        raise ReportError(f"{path} is of a cell that has no record")
    for key in ("init_sha256", "order_sha256", "steps"):
        if values[key] != run.result[key]:
            raise ReportError(f"{path} has another {key} than the record of its cell")


def _cells(
    theirs: Mapping[str, Losses], ours: Mapping[str, Losses], names: Mapping[str, str]
) -> pd.DataFrame:
    """Return a line for each run, the best row first."""
    lines = []
    for row in compare(ours, REFERENCE):
        for seed, loss in sorted(theirs[row].items()):
            line = {"variant": names[row], "seed": seed, "theirs": loss, "ours": ours[row][seed]}
            lines.append({**line, "theirs - ours": loss - ours[row][seed]})
    return pd.DataFrame(lines)


def _contrasts(
    theirs: Mapping[str, Losses], ours: Mapping[str, Losses], names: Mapping[str, str]
) -> pd.DataFrame:
    """Return each row's mean difference to the reference within its seeds, by both."""
    by_ours = compare(ours, REFERENCE)
    by_theirs = compare(theirs, REFERENCE)
    lines = []
    for row, contrast in by_ours.items():
        if row != REFERENCE and contrast.delta is not None:
            line = {"variant": names[row], "seeds": contrast.num_seeds}
            lines.append({**line, "theirs": by_theirs[row].delta, "ours": contrast.delta})
    return pd.DataFrame(lines)


def _order(theirs: Mapping[str, Losses], ours: Mapping[str, Losses]) -> str:
    """Say how far the orders of rows agree, over the seeds that all have."""
    ranks = []
    for losses in (theirs, ours):
        contrasts = compare(losses, REFERENCE)
        ranks.append({row: each.rank for row, each in contrasts.items() if each.rank is not None})
    tau, count = kendall_tau(*ranks)
    return "unknown" if tau is None else f"{tau:.2f} over {count} rows"


def _all_of(found: Mapping[Path, Mapping[str, Any]], package: str) -> str:
    return " and ".join(sorted({each["env"]["versions"][package] for each in found.values()}))


def main() -> int:
    """Run the command on this process's command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=OUT, help="(%(default)s)")
    commands = parser.add_subparsers(dest="command", required=True)
    of_train = commands.add_parser("train", help="train cells that have no file yet")
    of_train.add_argument("--campaign", default=PRIMARY, help="(%(default)s)")
    of_train.add_argument("--rows", nargs="+", default=[REFERENCE], help="(%(default)s)")
    of_train.add_argument("--seeds", nargs="+", type=int, default=[0], help="(%(default)s)")
    of_compare = commands.add_parser("compare", help="hold them against the records")
    of_compare.add_argument("--records", type=Path, default=RECORDS, help="(%(default)s)")
    asked = parser.parse_args()

    try:
        if asked.command == "train":
            train(asked.campaign, asked.rows, asked.seeds, asked.out)
            return EXIT_DONE
        for name, text in comparison(asked.records, asked.out).items():
            write_atomically(asked.out / name, text)
            print(asked.out / name)
    except (ConfigError, DataError, RecordError) as error:
        log(f"error: {error}")
        return EXIT_USAGE
    return EXIT_DONE


if __name__ == "__main__":
    sys.exit(main())
