"""Simulate cells on many GPUs that fail and are preempted: what is lost, by checkpoint interval.

    python scripts/scale.py --out docs/images/scale.svg

A job holds some cells, each on its own cards. An interruption of any card or node of a job throws
all its cells back to their last checkpoint. Interruptions are exponential, and none comes while a
job restarts. A job keeps its cards until all its cells are done; the next job then takes them.

Shapes: J jobs.
"""

import argparse
import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import altair as alt
import numpy as np
import pandas as pd
from numpy.typing import NDArray

from rope_exp.report.charts.style import explanation
from rope_exp.report.charts.svg import svg_of

Array = NDArray[np.float64]

# Grattafiori et al. 2024, section 3.3.4: 419 unexpected interruptions of 16,384 GPUs in 54 days.
CARD_FAILURES = 419 / (54 * 24 * 16_384)  # an hour
# Wu et al. 2024, the 45-day trace of one V100 in the three zones of us-west-2: 394 losses in
# 2,925 hours with an instance, and 351 hours without.
PREEMPTIONS = {"reserved": 0.0, "spot": 394 / 2925}  # of a node, an hour
WAIT_H = 351 / 394  # after a preemption, not paid
CARDS_A_NODE = 8

RESTART_H = 5 / 60  # assumed: queue, imports, data, checkpoint, compilation
CELLS_A_JOB = (1, 8, 64)
INTERVALS_MIN = (1, 2, 4, 8, 15, 30, 60, 120, 240, 480, 960)
REPEATS = 100
# An interval of more mean times between interruptions hardly ever passes.
LONGEST = 4


@dataclass(frozen=True)
class Job:
    """Cells that start and stop together.

    Attributes:
        work_h: hours of training, without saving.
        save_h: hours that a checkpoint takes.
        failures: of its cards, an hour.
        preemptions: of its nodes, an hour.
    """

    work_h: float
    save_h: float
    failures: float
    preemptions: float

    @property
    def mtbf_h(self) -> float:
        """The mean time between interruptions; infinite without any."""
        rate = self.failures + self.preemptions
        return 1 / rate if rate else math.inf

    def young_h(self) -> float:
        """Return the best interval by Young 1974: sqrt(2 C M)."""
        return math.sqrt(2 * self.save_h * self.mtbf_h)

    def daly_h(self) -> float:
        """Return the best interval by Daly 2006, where C < 2 M."""
        ratio = self.save_h / (2 * self.mtbf_h)
        return self.young_h() * (1 + math.sqrt(ratio) / 3 + ratio / 9) - self.save_h

    def expected_h(self, interval_h: float) -> float:
        """Return the expected paid hours: (exp(s / M) - 1) (M + R) for each segment of s hours.

        A segment is some work and its checkpoint. It begins anew after each interruption.
        """
        num_whole = math.ceil(self.work_h / interval_h - 1e-9) - 1
        lengths = [interval_h] * num_whole + [self.work_h - num_whole * interval_h]
        if math.isinf(self.mtbf_h):
            return sum(lengths) + self.save_h * len(lengths)
        return sum(
            math.expm1((length + self.save_h) / self.mtbf_h) * (self.mtbf_h + RESTART_H)
            for length in lengths
        )


def run_jobs(
    job: Job, interval_h: float, num_jobs: int, random: np.random.Generator
) -> tuple[Array, Array, Array]:
    """Return the paid hours, the hours of waiting and the interruptions of each job."""
    left_J = np.full(num_jobs, job.work_h)
    paid_J, waited_J, hits_J = np.zeros((3, num_jobs))
    while (runs_J := left_J > 0).any():
        needed_J = left_J + job.save_h * np.ceil(left_J / interval_h - 1e-9)
        failure_J, preemption_J = (
            random.exponential(1 / rate, num_jobs) if rate else np.full(num_jobs, np.inf)
            for rate in (job.failures, job.preemptions)
        )
        until_J = np.minimum(failure_J, preemption_J)
        ends_J = until_J >= needed_J

        paid_J += runs_J * np.where(ends_J, needed_J, until_J + RESTART_H)
        hits_J += runs_J & ~ends_J
        waited_J += WAIT_H * (runs_J & ~ends_J & (preemption_J < failure_J))
        saved_J = interval_h * np.floor(np.minimum(until_J, needed_J) / (interval_h + job.save_h))
        left_J = np.where(ends_J, 0, left_J - runs_J * saved_J)
    return paid_J, waited_J, hits_J


def wall_hours(hours_J: Array, num_slots: int) -> float:
    """Return when the last job ends, if each takes the slot that is free first."""
    free = [0.0] * num_slots
    for hours in hours_J:
        heapq.heapreplace(free, free[0] + float(hours))
    return max(free)


@dataclass(frozen=True)
class Fleet:
    """All cells and all cards.

    Attributes:
        hours: of one card that trains one cell.
        ranks: the cards of a cell, which share its work evenly.
        save_s: seconds that a checkpoint takes.
    """

    cells: int
    cards: int
    hours: float
    ranks: int
    save_s: float

    def job(self, capacity: str, cells_a_job: int) -> Job:
        """Return a job of so many cells."""
        cards = cells_a_job * self.ranks
        preemptions = PREEMPTIONS[capacity] * math.ceil(cards / CARDS_A_NODE)
        work_h = self.hours / self.ranks
        return Job(work_h, self.save_s / 3600, cards * CARD_FAILURES, preemptions)

    def simulate(
        self, job: Job, cells_a_job: int, interval_h: float, seed: int
    ) -> dict[str, float]:
        """Return means over REPEATS draws.

        Returns:
            lost: the share of the paid time that is no new work; used: the share of the cards' time
            until the last job ends that is; wall_h: this time; interruptions: of all jobs.
        """
        num_jobs = math.ceil(self.cells / cells_a_job)
        num_slots = self.cards // (cells_a_job * self.ranks)
        random = np.random.default_rng(seed)
        found = []
        for _ in range(REPEATS):
            paid_J, waited_J, hits_J = run_jobs(job, interval_h, num_jobs, random)
            wall = wall_hours(paid_J + waited_J, num_slots)
            used = self.cells * self.hours / (self.cards * wall)
            found.append((1 - job.work_h * num_jobs / paid_J.sum(), used, wall, hits_J.sum()))
        keys = ("lost", "used", "wall_h", "interruptions")
        return dict(zip(keys, np.mean(found, axis=0).tolist(), strict=True))


def simulated(fleet: Fleet, intervals_min: Sequence[float], seed: int) -> pd.DataFrame:
    """Return a row for each kind of capacity, cells a job and interval.

    The first interval is Young's, or the whole run if that is shorter. Intervals longer than the
    run, or than LONGEST times the mean time between interruptions, are left out.
    """
    rows = []
    for capacity in PREEMPTIONS:
        for size in [size for size in CELLS_A_JOB if size * fleet.ranks <= fleet.cards]:
            job = fleet.job(capacity, size)
            best_h = min(job.young_h(), job.work_h)
            for interval_h in (best_h, *(minutes / 60 for minutes in intervals_min)):
                if interval_h > min(LONGEST * job.mtbf_h, job.work_h):
                    continue
                rows.append(
                    {
                        "capacity": capacity,
                        "cells a job": size,
                        "mtbf_h": job.mtbf_h,
                        "young_min": 60 * job.young_h(),
                        "daly_min": 60 * job.daly_h(),
                        "minutes": 60 * interval_h,
                        "is_young": interval_h == best_h,
                        "expected": 1 - job.work_h / job.expected_h(interval_h),
                        **fleet.simulate(job, size, interval_h, seed),
                    }
                )
    return pd.DataFrame(rows)


def chart(rows: pd.DataFrame, fleet: Fleet) -> alt.FacetChart:
    """Draw the lost share against the interval: simulated, expected, and Young's choice."""
    x = alt.X("minutes:Q", title="minutes between checkpoints")
    x = x.scale(type="log", domain=[1, 1440], nice=False)
    x = x.axis(values=list(INTERVALS_MIN), format="d", grid=True)
    y = alt.Y("lost:Q", title="paid time lost").scale(type="log", domain=[1e-4, 1])
    y = y.axis(values=[1e-4, 1e-3, 1e-2, 1e-1, 1], format="~%", grid=True)
    color = alt.Color("cells a job:N", title="runs per job").scale(
        range=["#004488", "#C8961E", "#BB5566"]
    )
    base = alt.Chart().encode(x=x, color=color)
    line = base.mark_line(strokeWidth=1.2).encode(y=alt.Y("expected:Q"))
    dots = base.transform_filter("!datum.is_young").mark_point(filled=True, size=28, opacity=1)
    young = base.transform_filter("datum.is_young").mark_point(
        shape="diamond", size=110, fill="white", opacity=1, strokeWidth=1.6
    )
    sentences = (
        f"{fleet.cells:,} runs of {fleet.hours:g} GPU-hours on {fleet.cards} GPUs, "
        f"{fleet.save_s:g} s a checkpoint, {60 * RESTART_H:g} minutes a restart. Lost: saving, "
        "restarts and work that is done again. Dot: simulated. Line: by the formula. Diamond: "
        "simulated at Young's interval. On spot nodes of eight GPUs, 1 and 8 runs per job coincide."
    )
    layers = alt.layer(line, dots.encode(y=y), young.encode(y=y), data=rows, width=300, height=230)
    facet = alt.Column("capacity:N", title=None, header=alt.Header(labelFontSize=12))
    return layers.facet(column=facet, title=explanation([sentences]))


def main() -> None:
    """Print a table of what is lost, and draw it with --out."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cells", type=int, default=1000, help="(%(default)s)")
    parser.add_argument("--cards", type=int, default=512, help="(%(default)s)")
    parser.add_argument("--hours", type=float, default=62, help="of a cell, by plan (%(default)s)")
    parser.add_argument("--ranks", type=int, default=1, help="cards of a cell (%(default)s)")
    parser.add_argument("--save-seconds", type=float, default=12, help="a checkpoint (%(default)s)")
    parser.add_argument("--minutes", type=float, default=120, help="an interval (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the draws (%(default)s)")
    parser.add_argument("--out", type=Path, help="an SVG file for the chart by interval")
    asked = parser.parse_args()
    for name in ("cells", "cards", "hours", "ranks", "save_seconds", "minutes"):
        if not 0 < getattr(asked, name) < math.inf:
            parser.error(f"--{name.replace('_', '-')}: must be above 0")
    if asked.ranks > asked.cards:
        parser.error(f"--ranks={asked.ranks}: must be at most --cards={asked.cards}")

    fleet = Fleet(asked.cells, asked.cards, asked.hours, asked.ranks, asked.save_seconds)
    table = simulated(fleet, [asked.minutes], asked.seed)
    print(table.round(3).to_string(index=False))
    if asked.out is not None:
        drawn = chart(simulated(fleet, INTERVALS_MIN, asked.seed), fleet)
        asked.out.write_bytes(svg_of(drawn.to_dict()))


if __name__ == "__main__":
    main()
