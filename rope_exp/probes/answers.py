"""The answers of a model of generated data: exact matches by span, and the loss, of each split.

Each token is predicted from the true tokens before it, which gives the same exact matches as greedy
decoding. Each split but the trained one is read in as many rows as there are held-out rows.

Shapes: N rows, B of a micro-batch, T positions, V vocabulary, E examples.
"""

from collections.abc import Mapping
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
from rope_exp.stats import Pair, judge, noise_of, outcome, table_of

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

Ends = tuple[int, int]


def tables(report: Report) -> list[str]:
    """Return exact matches by row, split and bin, and published relations judged by them.

    A row's share is the mean over its seeds.
    """
    splits = parts(report)
    if report.task is None or not splits:
        return []
    columns = [Column("variant", "name"), Column("seeds", "num_seeds", "d")]
    for split, (_, *bins) in splits.items():
        columns.append(Column(split, split, ".1f", partial(_with_spread, split)))
        columns += [Column(_name(ends), f"{split} {_name(ends)}", ".1f") for ends in bins]

    lines = []
    for label, answers in report.answers("answers").items():
        row = report.rows[label]
        line: dict[str, Any] = {"name": row.name, "num_seeds": len(answers)}
        for split, (whole, *bins) in splits.items():
            percents = 100 * shares(row, split, whole)
            line |= {split: percents.mean(), f"{split} sd": percents.std()}
            for ends in bins:
                line[f"{split} {_name(ends)}"] = 100 * shares(row, split, ends).mean()
        lines.append(line)
    about = (
        f"Exact matches in %, by {report.task.span} (mean over seeds; for a whole split, with the "
        "SD over seeds):"
    )
    return [about, Table(columns, pd.DataFrame(lines)).markdown(), *_relations(report)]


def files(report: Report) -> dict[str, str]:
    """Return answers.csv, if there are exact matches: a line for each row, split and bin."""
    lines = []
    for label in report.answers("answers"):
        row = report.rows[label]
        for split, every in parts(report).items():
            for ends in every:
                right = shares(row, split, ends)
                if right.empty:
                    continue
                line = {"pe": label, "split": split, "span_first": ends[0], "span_last": ends[1]}
                line["num_seeds"] = len(right)
                line["num_examples"] = sum(_count(run, split, ends)[0] for run in row.runs)
                lines.append({**line, "right_mean": right.mean(), "right_sd": right.std()})
    if not lines:
        return {}
    return {"answers.csv": pd.DataFrame(lines).to_csv(index=False, float_format="%.6f")}


def parts(report: Report) -> dict[str, list[Ends]]:
    """Return the first and last span of each whole split, and of its bins with examples.

    The split with the shortest examples is first. There is none if the data are of several kinds.
    """
    spans: dict[str, set[int]] = {}
    for run in report.runs:
        for split, answer in run.probes.get("answers", {}).items():
            spans.setdefault(split, set()).update(answer["span"])
    if report.task is None:
        return {}

    found = {}
    for ordered, split in sorted((sorted(of_split), split) for split, of_split in spans.items()):
        edges = pairwise([*report.task.bins, ordered[-1] + 1])
        bins = [[span for span in ordered if start <= span < end] for start, end in edges]
        found[split] = [(part[0], part[-1]) for part in [ordered, *filter(None, bins)]]
    return found


def shares(row: Row, split: str, ends: Ends) -> "pd.Series[float]":
    """Return the share of these examples that a run answered without a wrong token, by seed."""
    counts = {run.config.seed: _count(run, split, ends) for run in row.runs}
    found = {seed: right / count for seed, (count, right) in counts.items() if count}
    return pd.Series(found, dtype=float)


def _count(run: Run, split: str, ends: Ends) -> tuple[int, int]:
    """Return the number of examples of these spans, and the number that a run answered right."""
    answer = run.probes.get("answers", {}).get(split, {"span": [], "count": [], "right": []})
    columns = zip(answer["span"], answer["count"], answer["right"], strict=True)
    inside = [(count, right) for span, count, right in columns if ends[0] <= span <= ends[1]]
    return sum(count for count, _ in inside), sum(right for _, right in inside)


def match_relations(report: Report) -> dict[str, list[Pair]]:
    """Return the published relations by split, judged by exact matches.

    The test uses the share of wrong answers instead of the loss; the margin is 1 point.
    """
    claim = None if report.published else report.source
    signs = {(a, b): sign for a, sign, b in claim.relations} if claim else {}
    found: dict[str, list[Pair]] = {}
    for split, (whole, *_) in parts(report).items():
        rows = [report.rows[label] for label in report.answers("answers")]
        wrong = table_of({row.label: dict(1 - shares(row, split, whole)) for row in rows})
        noise = noise_of(wrong, paired=is_always_paired(report.runs))
        found[split] = []
        for (a, b), pair in judge(wrong, list(signs), noise).items():
            of_both = wrong[[a, b]].to_numpy()
            has_room = np.nanmax(of_both) > ROOM and np.nanmin(of_both) < 1 - ROOM
            said = outcome(pair, signs[a, b]) if has_room else "open; floor or ceiling effect"
            found[split].append({**pair, "published": signs[a, b], "outcome": said})
    return found


def _relations(report: Report) -> list[str]:
    """Return a table of the published relations, in percentage points, if there are any."""
    lines = []
    for split, relations in match_relations(report).items():
        for relation in relations:
            names = [report.rows[relation[key]].name for key in ("a", "b")]
            low, high = (100 * relation[f"delta_ci_{end}"] for end in ("low", "high"))
            line = {
                "split": split,
                "published": f" {relation['published']} ".join(names),
                "ours": f" {relation['sign']} ".join(names),
                "Δ": 100 * relation["delta"],
                "95 % interval": interval(low, high, "+.1f"),
                "p (Holm)": spell_p(relation["p_adjusted"]),
                "seeds": relation["num_seeds"],
                "outcome": relation["outcome"],
            }
            lines.append(line)
    if not lines:
        return []
    forms = {"Δ": "+.1f", "95 % interval": "s", "p (Holm)": "s", "seeds": "d"}
    columns = [Column(key, key, forms.get(key, "")) for key in lines[0]]
    about = (
        "Published relations, judged by exact matches (Δ: the first variant's share minus the "
        "second's, in percentage points):"
    )
    return [about, Table(columns, pd.DataFrame(lines)).markdown()]


def _name(ends: Ends) -> str:
    """Return the spans of a bin as text."""
    return " to ".join(map(str, dict.fromkeys(ends)))


def _with_spread(split: str, line: Mapping[str, Any]) -> str:
    spread = number(line[f"{split} sd"], ".1f")
    return f"{number(line[split], '.1f')}{f' ± {spread}' if spread else ''}"
