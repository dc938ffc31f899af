"""Change of a row's gain over another from a campaign of the nine on English, seed by seed.

The gain of a row r over a row b at a seed s is loss(b, s) - loss(r, s). Its change is the gain here
minus the gain there. With d_rs = loss_here(r, s) - loss_there(r, s), it is d(b, s) - d(r, s): a
contrast of two rows in the layout of d, seed x row. It is judged by the paired t test.
"""

import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from rope_exp.evidence.comparable import comparable
from rope_exp.evidence.contrasts import Losses
from rope_exp.evidence.layout import Noise, measure, two_sided_f
from rope_exp.evidence.published import REFERENCE, UNROTATED
from rope_exp.evidence.runs import Run
from rope_exp.evidence.significance import Judged, judge
from rope_exp.report.content import Report
from rope_exp.report.sentences import spell_p
from rope_exp.report.spelling import markdown_table

# Campaigns of the nine on English, at several budgets and warmups. A setting is compared with the
# first that has the same tokens and warmup, or else with the first of all.
BASES = ("english", "warmup", "tokens")
# Gains are over these rows.
OVER = (UNROTATED, REFERENCE)


def files(
    asked: Collection[str], records: Mapping[str, Sequence[Run]], tables: Mapping[str, Report]
) -> dict[str, bytes]:
    """Return changes.md and changes.csv for each table of variants on text that shares a row."""
    found: dict[str, bytes] = {}
    for place, report in tables.items():
        base = _base(report, records)
        if not report.of_variants or report.task or not base:
            continue
        here = {label: row.losses for label, row in report.rows.items()}
        there = {label: row.losses for label, row in comparable(base, ["pe"]).items()}
        changes = [change for over in OVER for change in find_changes(here, there, over)]
        if changes:
            name = base[0].group
            text = _markdown(changes, report, name) + _noise(here, there, name)
            found[f"{place}/changes.md"] = text.encode()
            found[f"{place}/changes.csv"] = _csv(changes, report).encode()
    return found


def _base(report: Report, records: Mapping[str, Sequence[Run]]) -> list[Run]:
    """Return the runs to compare a table's gains with: preferably of equal tokens and warmup."""
    bases = {name: records[name] for name in BASES if name in records and name != report.groups}
    wanted = _budget(report.runs[0])
    for runs in bases.values():
        if found := [run for run in runs if _budget(run) == wanted]:
            return found
    return list(bases.get(BASES[0], ()))


def _budget(run: Run) -> tuple[int, float]:
    return run.config.train.num_tokens, run.config.schedule.warmup_fraction


@dataclass(frozen=True)
class Change:
    """A row's gain over another here and there, in the unit of the losses.

    Attributes:
        over: the other row's label.
        gain_here, gain_there: the means over the seeds.
        by_seed: the gain here minus the gain there.
        judged: the test of the mean change, in one family of all gains over that row; None with
            fewer than two seeds.
    """

    label: str
    over: str
    gain_here: float
    gain_there: float
    by_seed: Mapping[int, float]
    judged: Judged | None

    @property
    def mean(self) -> float:
        """The mean change over the seeds."""
        return statistics.mean(self.by_seed.values())


def find_changes(
    here: Mapping[str, Losses], there: Mapping[str, Losses], over: str
) -> list[Change]:
    """Return the change of each gain over a row that both settings have, largest first.

    Args:
        here, there: losses by the rows' labels; only seeds that both rows have in both count.
        over: the label of the row over which others gain.
    """
    ours, theirs = (pd.DataFrame(losses, dtype=float) for losses in (here, there))
    moved = (ours - theirs).sort_index().sort_index(axis="columns")
    moved = moved.dropna(axis="columns", how="all").dropna(axis="index", how="all")
    others = [str(label) for label in moved if label != over and over in moved]
    noise = measure(moved)
    paired = noise and replace(noise, method="paired")
    family = judge(moved, [(label, over) for label in others], paired)
    judged = {pair.a: pair for pair in family}

    changes = []
    for label in others:
        by_seed = (moved[over] - moved[label]).dropna()
        if len(by_seed):
            seeds = by_seed.index
            gain_here = (ours[over] - ours[label])[seeds].mean()
            gain_there = (theirs[over] - theirs[label])[seeds].mean()
            change = Change(
                label,
                over,
                gain_here,
                gain_there,
                dict(zip(seeds.tolist(), by_seed.tolist(), strict=True)),
                judged.get(label),
            )
            changes.append(change)
    return sorted(changes, key=lambda change: -change.mean)


def compare_noise(
    here: Mapping[str, Losses], there: Mapping[str, Losses]
) -> tuple[Noise, Noise, float] | None:
    """Return the residual noise of the runs that both settings share, here and there, and a p.

    Returns:
        p of equal standard deviations, by a two-sided F test that treats the two as independent;
        None if the shared runs have no residual.
    """
    tables = [pd.DataFrame(losses, dtype=float) for losses in (here, there)]
    is_shared = (tables[0] - tables[1]).notna()
    ours, theirs = (measure(table.reindex_like(is_shared).where(is_shared)) for table in tables)
    if ours is None or theirs is None or not ours.deviation or not theirs.deviation:
        return None
    ratio = np.array((ours.deviation / theirs.deviation) ** 2)
    return ours, theirs, float(two_sided_f(ratio, ours.df, theirs.df))


# -- formats ---------------------------------------------------------------------------------------


def _markdown(changes: Sequence[Change], report: Report, base: str) -> str:
    parts = []
    for over in dict.fromkeys(change.over for change in changes):
        table = [_line(each, report, base) for each in changes if each.over == over]
        name = report.rows[over].name
        parts.append(
            f"**Gains over {name} in {report.groups}, compared with {base}: the loss of {name} "
            "minus that of the row, at the seeds of both.**"
        )
        parts.append(markdown_table(pd.DataFrame(table)))
    tested = "With fewer than two seeds, nothing is tested."
    if any(change.judged for change in changes):
        tested = "Changes are tested by the paired t test, those of a table in one family."
    return "\n\n".join([*parts, f"In {report.unit} here. {tested}"]) + "\n"


def _line(change: Change, report: Report, base: str) -> dict[str, object]:
    judged = change.judged
    seeds = change.by_seed
    return {
        "variant": report.rows[change.label].name,
        "seeds": len(seeds),
        "gain here": f"{change.gain_here:+.4f}",
        f"gain in {base}": f"{change.gain_there:+.4f}",
        "change": f"{change.mean:+.4f}",
        "95 % interval": judged and f"{judged.low:+.4f} to {judged.high:+.4f}",
        "p (Holm)": judged and spell_p(judged.p_adjusted),
        "by seed": ", ".join(f"{seed}: {value:+.3f}" for seed, value in seeds.items()),
    }


def _noise(here: Mapping[str, Losses], there: Mapping[str, Losses], base: str) -> str:
    """Compare the noise of these runs with the same runs of the base."""
    found = compare_noise(here, there)
    if found is None:
        return ""
    ours, theirs, p = found
    return (
        f"\nNoise: over the rows and seeds of both, the residual SD is {ours.deviation:.4f} here "
        f"and {theirs.deviation:.4f} in {base} ({ours.df} degrees of freedom each; p of equal "
        f"noise, by an F test: {spell_p(p)}).\n"
    )


def _csv(changes: Sequence[Change], report: Report) -> str:
    lines = []
    for change in changes:
        judged = change.judged
        line = {
            "group": report.groups,
            "pe": change.label,
            "num_seeds": len(change.by_seed),
            "gain_here": change.gain_here,
            "gain_there": change.gain_there,
            "change": change.mean,
            "change_ci_low": judged and judged.low,
            "change_ci_high": judged and judged.high,
            "p_holm": judged and judged.p_adjusted,
            "over": change.over,
        }
        lines.append(line)
    return pd.DataFrame(lines).to_csv(index=False, float_format="%.6f")
