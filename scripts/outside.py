"""Train cells of a campaign with independent code, and compare the losses with its records.

    python scripts/outside.py train --rows qk_rope nope --seeds 0
    python scripts/outside.py compare

The model is transformers' LlamaForCausalLM, its attention patched to rotate other sites; loop,
optimizer, schedule, loss and evaluation are those of transformers' Trainer. Only the tokens, their
order and the initial weights are ours, so a run's loss is comparable with the record of the same
cell. A run writes <out>/CAMPAIGN/CELL.json, and is skipped if that exists; `compare` makes
CAMPAIGN.md and CAMPAIGN.csv from these files and the records alone.
"""

import argparse
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from scipy import stats

from rope_exp.evidence.comparable import comparable
from rope_exp.evidence.contrasts import Losses, compare, kendall_tau
from rope_exp.evidence.layout import measure
from rope_exp.evidence.published import REFERENCE
from rope_exp.evidence.records import canonical, check_digest, digest, read_records
from rope_exp.evidence.runs import ReportError, Run
from rope_exp.plan.campaign import load_campaign
from rope_exp.report.spelling import markdown_table
from rope_exp.system.console import log
from rope_exp.system.errors import EXIT_DONE, EXIT_USAGE, ConfigError, DataError, RecordError
from rope_exp.system.files import read_json, write_atomically

RECORDS = Path("results/records")
RUNS = Path("results/runs")
OUT = Path("results/outside")
# A run and the record of its cell must agree in these.
ALIKE = ("config_sha256", "init_sha256", "order_sha256", "steps")

ABOUT = """# The same runs with independent code

`python scripts/outside.py train` trains cells of `{campaign}` with transformers' Trainer and LlamaForCausalLM, whose attention is patched to rotate other sites. The model is not compiled and uses torch's fused attention (sdpa). Loop, AdamW, schedule (which is one step late), loss and evaluation are the Trainer's. The tokens, their order and the initial weights are those of our records, as hashes prove. transformers {transformers}, torch {torch}. Made by `python scripts/outside.py compare`.

{cells}

Theirs minus ours: {mean}, SD {deviation}, at most {largest:.4f}. If both were draws from the campaign's noise, the SD of the difference would be {noise}.

Mean within-seed differences from QK:

{contrasts}

Kendall's tau between the two orders of rows, from means adjusted for missing seeds: {order}.
"""  # noqa: E501


def train(campaign: str, rows: Sequence[str], seeds: Sequence[int], out: Path) -> None:
    """Train the cells of these rows and seeds that have no file yet.

    Raises:
        ConfigError: the campaign has no such row.
        DataError: there is no corpus.
    """
    cells = [cell for cell in load_campaign(campaign, None, RUNS).cells if cell.row in rows]
    if unknown := sorted(set(rows) - {cell.row for cell in cells}):
        raise ConfigError("--rows", unknown[0], f"is not a row of the campaign {campaign}")

    for cell in cells:
        path = out / campaign / f"{cell.name}.json"
        if cell.config.seed not in seeds or path.exists():
            continue
        # The import is slow, and a comparison does not need it.
        from outside_trainer import train_cell

        log(f"{cell.name}: training with transformers' Trainer")
        found = train_cell(cell.config)
        write_outside(path, {"row": cell.row, "seed": cell.config.seed, **found})
        log(f"{cell.name}: loss {found['val/loss']:.4f}, {found['wall_s']:.0f} s")


def write_outside(path: Path, values: Mapping[str, Any]) -> None:
    """Write a cell's results, with the names of campaign and cell, and a digest of it all."""
    named = {"campaign": path.parent.name, "cell": path.stem, **values}
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, canonical({**named, "sha256": digest(named)}))


def comparisons(records: Path, out: Path) -> dict[str, str]:
    """Return CAMPAIGN.md and CAMPAIGN.csv of each campaign that was trained.

    Raises:
        RecordError: there are no runs; a file cannot be read or was changed; or a run does not have
            the config, weights and tokens of its record.
    """
    folders = sorted({path.parent for path in out.glob("*/*.json")})
    if not folders:
        raise ReportError(f"{out} holds no runs; `train` creates them")
    files: dict[str, str] = {}
    for folder in folders:
        found = [_read(path) for path in sorted(folder.glob("*.json"))]
        files |= _comparison(folder.name, found, read_records(records, folder.name))
    return files


def _read(path: Path) -> dict[str, Any]:
    """Return an outside run, after checks of its digest and place."""
    values = read_json(path)
    check_digest(path, values)
    if (values["campaign"], values["cell"]) != (path.parent.name, path.stem):
        raise ReportError(f"{path} holds {values['campaign']}/{values['cell']}: moved or renamed")
    return values


def _comparison(
    campaign: str, found: Sequence[Mapping[str, Any]], recorded: Sequence[Run]
) -> dict[str, str]:
    """Return the two files of a campaign's runs."""
    of_cell = {run.where: run for run in recorded}

    theirs: dict[str, dict[int, float]] = {}
    ours: dict[str, dict[int, float]] = {}
    names = {}
    for values in found:
        run = _record_of(values, of_cell)
        theirs.setdefault(values["row"], {})[values["seed"]] = values["val/loss"]
        ours.setdefault(values["row"], {})[values["seed"]] = run.result["val/loss"]
        names[values["row"]] = run.variant_name

    cells = _cells(theirs, ours, names)
    noise = measure({row: each.losses for row, each in comparable(recorded, ["pe"]).items()})
    apart = cells["theirs - ours"]
    text = ABOUT.format(
        campaign=campaign,
        transformers=_all_of(found, "transformers"),
        torch=_all_of(found, "torch"),
        cells=markdown_table(cells, ".4f"),
        mean=_mean(apart),
        deviation="unknown" if len(apart) < 2 else f"{apart.std():.4f}",
        largest=apart.abs().max(),
        noise="unknown" if noise is None else f"{math.sqrt(2) * noise.deviation:.4f}",
        contrasts=markdown_table(_contrasts(theirs, ours, names), "+.4f"),
        order=_order(theirs, ours),
    )
    table = cells.to_csv(index=False, float_format="%.6f")
    return {f"{campaign}.md": text, f"{campaign}.csv": table}


def _record_of(values: Mapping[str, Any], of_cell: Mapping[str, Run]) -> Run:
    """Return the record of a run's cell; refuse a run without a record, or one that differs."""
    where = f"{values['campaign']}/{values['cell']}"
    run = of_cell.get(where)
    if run is None or run.loss is None:
        raise ReportError(f"the outside run {where} belongs to a cell without a finished record")
    for key in ALIKE:
        if values[key] != run.result[key]:
            raise ReportError(f"the outside run {where} differs from its record in {key}")
    if (values["row"], values["seed"]) != (run.row, run.config.seed):
        raise ReportError(f"the outside run {where} differs from its record in row or seed")
    return run


def _mean(apart: pd.Series) -> str:
    """Return the mean with its 95 % interval by Student's t, as if runs were independent."""
    mean = float(apart.mean())
    text = f"mean {mean:+.4f}"
    if len(apart) < 2:
        return text
    half = float(stats.t.ppf(0.975, len(apart) - 1)) * float(apart.std()) / math.sqrt(len(apart))
    return f"{text} ({mean - half:+.4f} to {mean + half:+.4f})"


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
    """Return each row's mean difference to the reference within its seeds, for both codes."""
    by_ours = compare(ours, REFERENCE)
    by_theirs = compare(theirs, REFERENCE)
    lines = []
    for row, contrast in by_ours.items():
        if row != REFERENCE and contrast.delta is not None:
            line = {"variant": names[row], "seeds": contrast.num_seeds}
            lines.append({**line, "theirs": by_theirs[row].delta, "ours": contrast.delta})
    return pd.DataFrame(lines)


def _order(theirs: Mapping[str, Losses], ours: Mapping[str, Losses]) -> str:
    """Return the agreement of the two orders of rows, as Kendall's tau."""
    ranks = []
    for losses in (theirs, ours):
        contrasts = compare(losses, REFERENCE)
        ranks.append({row: each.rank for row, each in contrasts.items() if each.rank is not None})
    tau, count = kendall_tau(*ranks)
    return "unknown" if tau is None else f"{tau:.2f} over {count} rows"


def _all_of(found: Sequence[Mapping[str, Any]], package: str) -> str:
    versions = {each["env"]["versions"].get(package, "unknown") for each in found}
    return " and ".join(sorted(versions))


def main() -> int:
    """Run the command on this process's command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=OUT, help="(%(default)s)")
    commands = parser.add_subparsers(dest="command", required=True)
    of_train = commands.add_parser("train", help="train cells that have no file yet")
    of_train.add_argument("--campaign", default="english", help="(%(default)s)")
    of_train.add_argument("--rows", nargs="+", default=[REFERENCE], help="(%(default)s)")
    of_train.add_argument("--seeds", nargs="+", type=int, default=[0], help="(%(default)s)")
    of_compare = commands.add_parser("compare", help="compare them with the records")
    of_compare.add_argument("--records", type=Path, default=RECORDS, help="(%(default)s)")
    asked = parser.parse_args()

    try:
        if asked.command == "train":
            train(asked.campaign, asked.rows, asked.seeds, asked.out)
            return EXIT_DONE
        for name, text in comparisons(asked.records, asked.out).items():
            write_atomically(asked.out / name, text)
            print(asked.out / name)
    except (ConfigError, DataError, RecordError) as error:
        log(f"error: {error}")
        return EXIT_USAGE
    return EXIT_DONE


if __name__ == "__main__":
    sys.exit(main())
