"""The answers of a model of generated data: exact matches by span, and the loss, of each split.

Each token is predicted from the true tokens before it, which gives the same exact matches as greedy
decoding. Each split but the trained one is read in as many rows as there are held-out rows.

Shapes: N rows, B of a micro-batch, T positions, V vocabulary, E examples.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Annotated, Any

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor
from typing_extensions import TypedDict

from rope_exp.batches import NO_TARGET
from rope_exp.comparable import Row
from rope_exp.config import RunConfig
from rope_exp.evaluate import Finished, Inputs, rounded
from rope_exp.identity import Count, Natural
from rope_exp.kernels import wide
from rope_exp.probes._types import ONE_LENGTH, Number
from rope_exp.report import (
    ROOM,
    Column,
    Report,
    Table,
    interval,
    is_always_paired,
    number,
    spell_p,
)
from rope_exp.rows import TRAIN
from rope_exp.runs import Run
from rope_exp.stats import Pair, judge, noise_of, outcome

# Below the published relations, above other probes.
ORDER = 3


class _OfSplit(TypedDict):
    span: list[Natural]
    count: list[Count]
    right: list[Natural]
    loss: Number


Answer = dict[str, Annotated[_OfSplit, ONE_LENGTH]]


def why_not(config: RunConfig) -> str:
    """Return why a run's model cannot be asked, or ""."""
    return "" if config.data.task else "answers are asked of generated data, such as data=addition"


def ask(model: Finished) -> dict[str, Any]:
    """Return, for each split, the examples of each span, those without a wrong token, the loss."""
    found = {}
    for split in model.data.facts.splits:
        if split == TRAIN:
            continue
        rows = model.data.rows(split, range(model.config.train.eval_sequences))
        parts = [
            _right_and_nats(model.decoder(inputs.ids_BT), inputs)
            for inputs in model.batches(rows.batch, model.rows_at_once)
        ]
        right_NT, nats_NT = (torch.cat(part).cpu() for part in zip(*parts, strict=True))
        span_E, is_match_E = rows.exact_matches(right_NT.numpy())
        spans, counts = np.unique(span_E, return_counts=True)
        found[split] = {
            "span": spans.tolist(),
            "count": counts.tolist(),
            "right": [int(is_match_E[span_E == span].sum()) for span in spans],
            "loss": rounded([nats_NT.double().sum() / rows.batch.num_targets])[0],
        }
    return found


def _right_and_nats(logits_BTV: Tensor, inputs: Inputs) -> tuple[Tensor, Tensor]:
    """Return, as [B, T], whether each prediction is right, and -log p; 0 without a target."""
    logits_BTV = wide(logits_BTV)
    right_BT = logits_BTV.argmax(dim=-1) == inputs.target_BP
    nats_BT = F.cross_entropy(
        logits_BTV.mT, inputs.target_BP, reduction="none", ignore_index=NO_TARGET
    )
    return right_BT, nats_BT


# -- report ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Part:
    """The examples of a split with spans from `first` to `last`, inclusive.

    Attributes:
        name: the spans as text; empty for a whole split.
    """

    split: str
    name: str
    first: int
    last: int

    @property
    def key(self) -> str:
        """The part's name in frames."""
        return f"{self.split} {self.name}".rstrip()


def tables(report: Report) -> list[str]:
    """Return exact matches by row, split and bin, and published relations judged by them.

    A run's share is the fraction of its examples; a row's share is the mean over its seeds.
    """
    if report.task is None or not report.answers("answers"):
        return []
    parts = [
        f"Exact matches in %, by {report.task.span} (mean over seeds; for a whole split, with the "
        "SD over seeds):",
        matches(report).markdown(),
    ]
    relations = match_relations(report)
    if any(relations.values()):
        parts += [
            "Published relations, judged by exact matches (Δ: the first variant's share minus the "
            "second's, in percentage points):",
            _relations(report, relations).markdown(),
        ]
    return parts


def files(report: Report) -> dict[str, str]:
    """Return answers.csv, if there are exact matches: a line for each row, split and bin."""
    found = shares(report)
    if found.empty:
        return {}
    by = {"label": "pe", "split": "split", "first": "span_first", "last": "span_last"}
    over_seeds = found.groupby([*by, "part"], sort=False).agg(
        num_seeds=("share", "count"),
        num_examples=("count", "sum"),
        right_mean=("share", "mean"),
        right_sd=("share", "std"),
    )
    table = over_seeds.reset_index().drop(columns="part").rename(columns=by)
    return {"answers.csv": table.to_csv(index=False, float_format="%.6f")}


def count_matches(run: Run, split: str, first: float, last: float) -> tuple[int, int]:
    """Return the number of examples of these spans, and the number that a run answered right."""
    answers = run.probes.get("answers", {}).get(split)
    if answers is None:
        return 0, 0
    columns = zip(answers["span"], answers["count"], answers["right"], strict=True)
    inside = [(count, right) for span, count, right in columns if first <= span <= last]
    return sum(count for count, _ in inside), sum(right for _, right in inside)


def with_answers(report: Report) -> list[Row]:
    """Return the rows with exact matches; none if the data are of several kinds."""
    return [report.rows[label] for label in report.answers("answers")] if report.task else []


def parts(report: Report) -> list[Part]:
    """Return each split followed by its bins, those with the shortest examples first."""
    if report.task is None:
        return []
    spans: dict[str, set[int]] = {}
    for run in report.runs:
        for split, answers in run.probes.get("answers", {}).items():
            spans.setdefault(split, set()).update(answers["span"])

    found = []
    for ordered, split in sorted((sorted(of_split), split) for split, of_split in spans.items()):
        found.append(Part(split, "", ordered[0], ordered[-1]))
        for start, following in pairwise([*report.task.bins, ordered[-1] + 1]):
            inside = [span for span in ordered if start <= span < following]
            if inside:
                ends = dict.fromkeys([inside[0], inside[-1]])
                found.append(Part(split, " to ".join(map(str, ends)), inside[0], inside[-1]))
    return found


def shares(report: Report) -> pd.DataFrame:
    """Return the share of a part's examples that a run answered without a wrong token.

    A line for each row, part and seed. Columns are label, split, part (its name), key, first, last,
    seed, count (of examples) and share.
    """
    columns = ["label", "split", "part", "key", "first", "last", "seed", "count", "share"]
    found = []
    for row in with_answers(report):
        for part in parts(report):
            told = (row.label, part.split, part.name, part.key, part.first, part.last)
            for run in row.runs:
                count, right = count_matches(run, part.split, part.first, part.last)
                if count:
                    found.append((*told, run.config.seed, count, right / count))
    return pd.DataFrame(found, columns=columns)


def match_relations(report: Report) -> dict[str, list[Pair]]:
    """Return the published relations by split, judged by exact matches.

    The test uses the share of wrong answers instead of the loss; the margin is 1 point.
    """
    claim = None if report.published else report.source
    signs = {(a, b): sign for a, sign, b in claim.relations} if claim else {}
    every = shares(report)
    found = {}
    for split, of_split in every[every["part"] == ""].groupby("split", sort=False):
        wrong = 1 - of_split.pivot_table("share", "seed", "label", sort=False).sort_index()
        relations = []
        noise = noise_of(wrong, paired=is_always_paired(report.runs))
        for (a, b), pair in judge(wrong, list(signs), noise).items():
            of_both = wrong[[a, b]].to_numpy()
            has_room = np.nanmax(of_both) > ROOM and np.nanmin(of_both) < 1 - ROOM
            said = outcome(pair, signs[a, b]) if has_room else "open; floor or ceiling effect"
            relations.append({**pair, "published": signs[a, b], "outcome": said})
        found[str(split)] = relations
    return found


def matches(report: Report) -> Table:
    """Return exact matches in %: a line for each row, a column for each split and bin."""
    columns = [Column("variant", "name"), Column("seeds", "num_seeds", "d")]
    for part in parts(report):
        if part.name:
            columns.append(Column(part.name, part.key, ".1f"))
        else:
            columns.append(Column(part.split, part.key, ".1f", partial(_with_spread, part.key)))

    found = shares(report)
    percents = (100 * found["share"]).groupby([found["label"], found["key"]])
    lines = []
    for row in with_answers(report):
        seeds = {run.config.seed for run in row.runs if "answers" in run.probes}
        lines.append({"label": row.label, "name": row.name, "num_seeds": len(seeds)})
    table = pd.DataFrame(lines, columns=["label", "name", "num_seeds"])
    for numbers in (percents.mean().unstack(), percents.std().unstack().add_suffix(" sd")):
        table = table.join(numbers, on="label")
    return Table(columns, table)


def _with_spread(split: str, line: Mapping[str, Any]) -> str:
    spread = number(line[f"{split} sd"], ".1f")
    return f"{number(line[split], '.1f')}{f' ± {spread}' if spread else ''}"


def _relations(report: Report, of_splits: Mapping[str, Sequence[Pair]]) -> Table:
    """Return the published relations, judged by exact matches, in percentage points."""
    lines = []
    for split, relations in of_splits.items():
        for relation in relations:
            a = report.rows[relation["a"]].name
            b = report.rows[relation["b"]].name
            low, high = (100 * relation[f"delta_ci_{end}"] for end in ("low", "high"))
            lines.append(
                {
                    "split": split,
                    "published": f"{a} {relation['published']} {b}",
                    "ours": f"{a} {relation['sign']} {b}",
                    "delta": 100 * relation["delta"],
                    "interval": interval(low, high, "+.1f"),
                    "p": spell_p(relation["p_adjusted"]),
                    "num_seeds": relation["num_seeds"],
                    "outcome": relation["outcome"],
                }
            )
    columns = [
        Column("split", "split"),
        Column("published", "published"),
        Column("ours", "ours"),
        Column("Δ", "delta", "+.1f"),
        Column("95 % interval", "interval", "s"),
        Column("p (Holm)", "p", "s"),
        Column("seeds", "num_seeds", "d"),
        Column("outcome", "outcome"),
    ]
    return Table(columns, pd.DataFrame(lines))
