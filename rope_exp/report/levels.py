"""The levels of all campaigns. A level is the runs of one table on the page.

A reader of the page chooses a level by facets. Every run has the facets campaign, corpus, size,
tokens and length; each factor of a campaign that these do not determine is a further facet.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rope_exp.config.campaign_file import SEEDS
from rope_exp.config.run import RunConfig
from rope_exp.evidence.comparable import check_blocks, has_blocks, spelled, telling, value_of
from rope_exp.evidence.runs import ReportError, Run
from rope_exp.report.content import Report, build

_CAMPAIGN = "campaign"
_ATTENTION = "attention"
TITLES = {
    _CAMPAIGN: "Campaign",
    "corpus": "Corpus",
    "size": "Size",
    "tokens": "Training tokens",
    "length": "Training length",
    _ATTENTION: "Attention",
    "optim.lr": "Learning rate",
}


class Choice(NamedTuple):
    """One value of a facet: its sort key, and its displayed text."""

    order: float
    text: str


_ALL_KINDS = Choice(1, "rows of all kinds")


@dataclass(frozen=True)
class Level:
    """Runs of one table.

    Attributes:
        facets: the values that identify the level, by key.
        report: its rows, compared with `build`'s default reference or else with its best row.
        joined: the campaigns of a level that joins several.
    """

    facets: Mapping[str, Choice]
    report: Report
    joined: Sequence[str] = ()

    @property
    def num_losses(self) -> int:
        """The number of runs with a loss."""
        return sum(len(row.losses) for row in self.report.rows.values())


def find_levels(campaigns: Mapping[str, Sequence[Run]]) -> list[Level]:
    """Return every level of the campaigns that make tables, levels of one campaign first.

    Campaigns with a level in common may have different rows in it. If these are comparable, a
    further level joins them.

    Raises:
        ReportError: the runs of a campaign's level may not share a table.
    """
    asked = [run for runs in campaigns.values() if has_blocks(runs) for run in runs]
    others = _untold(asked)
    groups: dict[tuple[Choice, ...], list[Run]] = {}
    for run in asked:
        groups.setdefault(tuple(_facets(run, others).values()), []).append(run)

    levels = []
    for _, runs in sorted(groups.items()):
        facets = _facets(runs[0], others)
        kind = _attention(runs[0].config) if telling(runs) == ["pe"] else _ALL_KINDS
        levels.append(Level({**facets, _ATTENTION: kind}, _report(runs)))
        for of_kind in kinds_of(runs).values():
            kind = _attention(of_kind[0].config)
            levels.append(Level({**facets, _ATTENTION: kind}, _report(of_kind, ["pe"])))
    # Skip levels with named rows: rows that match another campaign's variants are the same runs.
    return levels + _joined([level for level in levels if not level.report.runs[0].config.row_name])


def kinds_of(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Return the runs of each kind of attention by its label, for a table with named rows.

    Includes only kinds with at least two variants, all of one size.
    """
    if telling(runs) == ["pe"]:
        return {}
    kinds: dict[str, list[Run]] = {}
    for run in runs:
        kinds.setdefault(run.config.attn.label, []).append(run)
    return {
        label: found
        for label, found in sorted(kinds.items())
        if len({run.config.pe.label for run in found}) > 1
        and all(run.config.model == found[0].config.model for run in found)
    }


def _facets(run: Run, others: Iterable[str]) -> dict[str, Choice]:
    told = {_CAMPAIGN: Choice(0, run.group), **_base(run.config)}
    return told | {key: _choice(run.config, key) for key in others}


def _base(config: RunConfig) -> dict[str, Choice]:
    """Return the facets of every run except its campaign."""
    model = config.model
    layers = model.num_hidden_layers
    tokens = config.train.num_tokens
    lengths = sorted({stage.seq_len for stage in config.train.staged})
    size = f"{model.name}: {layers} layers of {model.hidden_size}"
    return {
        "corpus": Choice(0, str(config.data.name)),
        "size": Choice(layers * model.hidden_size**2, size),
        "tokens": Choice(tokens, f"{tokens:,} tokens"),
        "length": Choice(lengths[-1], f"{', '.join(f'{length:,}' for length in lengths)} tokens"),
    }


def _attention(config: RunConfig) -> Choice:
    return Choice(0, config.attn.label)


def _choice(config: RunConfig, key: str) -> Choice:
    value = value_of(config, key)
    order = value if isinstance(value, int | float) else math.inf
    return Choice(order, spelled(config, key))


def _untold(runs: Sequence[Run]) -> list[str]:
    """Return the factors of campaigns that the base facets do not determine."""
    factors = {key for run in runs for key in run.factors} - set(SEEDS)
    untold = set()
    for key in factors:
        told: dict[tuple[Choice, ...], Choice] = {}
        for run in runs:
            choice = _choice(run.config, key)
            if told.setdefault(tuple(_base(run.config).values()), choice) != choice:
                untold.add(key)
    return sorted(untold)


def _report(runs: Sequence[Run], keys: Sequence[str] = ()) -> Report:
    """Build the report. If the default reference has no loss, compare with the best row."""
    keys = keys or telling(runs)
    report = build(runs, keys)
    with_loss = [label for label, row in report.rows.items() if row.losses]
    if report.reference.losses or not with_loss:
        return report
    return build(runs, keys, with_loss[0])


# -- levels of several campaigns -------------------------------------------------------------------


def _joined(levels: Sequence[Level]) -> list[Level]:
    """Return a joined level where several campaigns have comparable runs."""
    alike: dict[tuple[Choice, ...], list[Level]] = {}
    for level in levels:
        _, *told = level.facets.values()
        alike.setdefault(tuple(told), []).append(level)

    joined = []
    for parts in alike.values():
        names = [part.facets[_CAMPAIGN].text for part in parts]
        runs = _union(parts)
        # If one campaign contains all runs of the others, there is nothing to join.
        if len(runs) == max(len(part.report.runs) for part in parts):
            continue
        try:
            check_blocks(runs)
            report = _report(runs)
        except ReportError:
            continue
        facets = {**parts[0].facets, _CAMPAIGN: Choice(1, " + ".join(names))}
        joined.append(Level(facets, report, names))
    return joined


def _union(parts: Sequence[Level]) -> list[Run]:
    """Return every run once; for a cell that two campaigns ran, use the first campaign's run."""
    found: dict[str, Run] = {}
    for part in parts:
        for run in part.report.runs:
            found.setdefault(run.config.config_sha256, run)
    return list(found.values())
