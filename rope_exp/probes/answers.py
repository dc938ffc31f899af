"""The answers of a model of generated data: exact matches by span, and the loss, of each split.

Each token is predicted from the true tokens before it, which gives the same exact matches as greedy
decoding. Shapes: B rows, T positions, V vocabulary, E examples.
"""

from typing import Annotated, Any

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from typing_extensions import TypedDict

from rope_exp.attention import at_least_float32
from rope_exp.config import RunConfig
from rope_exp.corpus import NO_TARGET, TRAIN
from rope_exp.probes._answer import Number, of_one_length
from rope_exp.probes._windows import Finished, batches, rounded
from rope_exp.report import Part, Report
from rope_exp.sections import Count, Natural
from rope_exp.stats import ROOM, judge, outcome
from rope_exp.tables import Column, Table, interval, number, span, spell_p


class Split(TypedDict):
    """The examples of a split, by their span, and the mean loss of all."""

    span: list[Natural]
    count: list[Count]
    right: list[Natural]
    loss: Number


ANSWER = dict[str, Annotated[Split, of_one_length("span", "count", "right")]]

_PLACE = ["split", "bin", "span_first", "span_last"]


def why_not(config: RunConfig) -> str:
    """Return why a run's model cannot be asked, or ""."""
    if config.task is None:
        return "answers are asked of generated data, such as data=addition"
    return ""


def ask(trainer: Finished) -> dict[str, Any]:
    """Return, for each split, the examples of each span, those without a wrong token, the loss."""
    answer = {}
    task = trainer.config.task
    assert task is not None
    for split in task.splits:
        if split == TRAIN:
            continue
        rows = trainer.data.rows(split, range(trainer.config.train.eval_sequences))
        right = []
        nats = []
        for inputs in batches(trainer, rows.batch, trainer.rows_at_once):
            logits_BTV = at_least_float32(trainer.decoder(inputs.ids_BT))
            target_BP = inputs.target_BP
            right.append(logits_BTV.argmax(dim=-1) == target_BP)
            # 0 without a target.
            nats_BT = F.cross_entropy(
                logits_BTV.mT, target_BP, reduction="none", ignore_index=NO_TARGET
            )
            nats.append(nats_BT)

        span_E, is_match_E = rows.exact_matches(torch.cat(right).cpu().numpy())
        spans, counts = np.unique(span_E, return_counts=True)
        loss = torch.cat(nats).cpu().double().sum() / rows.batch.num_targets
        answer[split] = {
            "span": spans.tolist(),
            "count": counts.tolist(),
            "right": [int(is_match_E[span_E == span].sum()) for span in spans],
            "loss": rounded([loss])[0],
        }
    return answer


def tables(report: Report) -> list[str]:
    """Return exact matches by row, split and bin, and published relations judged by them."""
    over_seeds = _over_seeds(report)
    if over_seeds.empty:
        return []
    columns = [Column("variant", "name"), Column("seeds", "num_seeds", "d")]
    lines: dict[str, dict[str, Any]] = {
        label: {"name": report.rows[label].name, "num_seeds": len(answers)}
        for label, answers in report.answers("answers").items()
    }
    groups: Any = over_seeds.groupby(_PLACE, observed=True)
    for (split, part, *ends), cells in groups:
        key = f"{split} {part}"
        columns.append(Column(span(ends) if part else split, key, "s"))
        for cell in cells.to_dict("records"):
            mean, sd = (number(100 * cell[f"right_{name}"], ".1f") for name in ("mean", "sd"))
            lines[cell["pe"]][key] = f"{mean} ± {sd}" if sd and not part else mean
    task = report.runs[0].config.task
    assert task is not None
    about = (
        f"Exact matches in %, by {task.span} (mean over seeds; for a "
        "whole split, with the SD over seeds):"
    )
    return [about, Table(columns, pd.DataFrame(lines.values())).markdown(), *_relations(report)]


def files(report: Report) -> dict[str, str]:
    """Return answers.csv, if there are exact matches: a line for each row, split and bin."""
    over_seeds = _over_seeds(report)
    if over_seeds.empty:
        return {}
    text = over_seeds.drop(columns="bin").to_csv(index=False, float_format="%.6f")
    return {"answers.csv": text}


def match_relations(report: Report) -> list[dict[Any, Any]]:
    """Return the published relations by `split`, judged by the share of wrong answers."""
    shares = _shares(report)
    signs = report.source.signs
    if not signs or report.source.losses or shares.empty:
        return []
    relations = []
    for split, of_split in shares[shares["bin"] == 0].groupby("split", observed=True):
        wrong = 1 - of_split.pivot(index="seed", columns="pe", values="share")
        for pair in judge(wrong, signs, plan=False).to_dict("records"):
            a = pair["a"]
            b = pair["b"]
            of_both = wrong[[a, b]].to_numpy()
            has_room = np.nanmax(of_both) > ROOM and np.nanmin(of_both) < 1 - ROOM
            verdict = outcome(pair, signs[a, b]) if has_room else "open; floor or ceiling effect"
            published = {"split": split, "published": signs[a, b], "outcome": verdict}
            relations.append(pair | published)
    return relations


def _over_seeds(report: Report) -> pd.DataFrame:
    """Return the mean and SD of shares over seeds, as in answers.csv, and the bin."""
    shares = _shares(report)
    if shares.empty:
        return shares
    return shares.groupby(["pe", *_PLACE], observed=True, as_index=False).agg(
        num_seeds=("share", "count"),
        num_examples=("count", "sum"),
        right_mean=("share", "mean"),
        right_sd=("share", "std"),
    )


def _shares(report: Report) -> pd.DataFrame:
    """Return the `share` of each row, split, bin and seed that was answered without a wrong token.

    Bin 0 is the whole split. There is no line if the data are of several kinds, or text.
    """
    parts = []
    for row in report.rows.values():
        for run in row.runs:
            for split, answer in run.probes.get("answers", {}).items():
                spans = pd.DataFrame(answer, columns=["span", "count", "right"])
                parts.append(spans.assign(split=split, pe=row.label, seed=run.config.seed))
    tasks = {run.config.data.kind: run.config.task for run in report.runs}
    if len(tasks) > 1 or not parts:
        return pd.DataFrame()
    [task] = tasks.values()
    if task is None:
        return pd.DataFrame()

    spans = pd.concat(parts)
    spans["bin"] = np.digitize(spans["span"], task.bins)
    spans = pd.concat([spans.assign(bin=0), spans], ignore_index=True)
    of_bins = spans.groupby(["split", "bin"])["span"]
    spans["span_first"] = of_bins.transform("min")
    spans["span_last"] = of_bins.transform("max")

    by_length = spans.groupby("split")["span"].min().sort_values().index
    spans["split"] = pd.Categorical(spans["split"], by_length)
    spans["pe"] = pd.Categorical(spans["pe"], [*report.rows])
    groups = spans.groupby(["pe", *_PLACE, "seed"], observed=True, as_index=False)
    shares = groups[["count", "right"]].sum()
    return shares.assign(share=shares["right"] / shares["count"])


def _relations(report: Report) -> list[str]:
    """Return a table of the published relations, in percentage points, if there are any."""
    lines = []
    for pair in match_relations(report):
        names = [report.rows[pair[key]].name for key in ("a", "b")]
        low, high = (100 * pair[f"delta_ci_{end}"] for end in ("low", "high"))
        line = {
            "split": pair["split"],
            "published": f" {pair['published']} ".join(names),
            "ours": f" {pair['sign']} ".join(names),
            "Δ": number(100 * pair["delta"], "+.1f"),
            "95 % interval": interval(low, high, "+.1f"),
            "p (Holm)": spell_p(pair["p_adjusted"]),
            "seeds": str(pair["num_seeds"]),
            "outcome": pair["outcome"],
        }
        lines.append(line)
    if not lines:
        return []

    forms = dict.fromkeys(("split", "published", "ours", "outcome"), "")
    columns = [Column(name, name, forms.get(name, "s")) for name in lines[0]]
    about = (
        "Published relations, judged by exact matches (Δ: the first variant's share minus the "
        "second's, in percentage points):"
    )
    return [about, Table(columns, pd.DataFrame(lines)).markdown()]


REPORT = Part(order=3, tables=tables, files=files)
