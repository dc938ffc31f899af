"""Exact matches on generated data: which share of its examples a run answers without a mistake."""

from collections.abc import Iterable
from math import inf

from rope_exp.data.tasks.rows import TEST
from rope_exp.evidence.runs import Run

# Where both rows answer less than this share, or all but it, nothing can set them apart.
ROOM = 0.01


def count_matches(run: Run, split: str, first: float = -inf, last: float = inf) -> tuple[int, int]:
    """Return how many examples of these spans a run was asked, and how many it answered."""
    answers = run.probes.get("answers", {}).get(split)
    if answers is None:
        return 0, 0
    columns = zip(answers["span"], answers["count"], answers["right"], strict=True)
    inside = [(count, right) for span, count, right in columns if first <= span <= last]
    return sum(count for count, _ in inside), sum(right for _, right in inside)


def share_right(run: Run, split: str, first: float = -inf, last: float = inf) -> float | None:
    """Return which share of these a run answered; None where it was asked none."""
    count, right = count_matches(run, split, first, last)
    return right / count if count else None


def is_too_easy(runs: Iterable[Run]) -> bool:
    """Whether all runs that were asked leave next to nothing wrong of what they were trained for.

    Then neither losses nor matches say which is better (docs/protocol.md, section 8).
    """
    shares = [share for run in runs if (share := share_right(run, TEST)) is not None]
    return bool(shares) and min(shares) >= 1 - ROOM
