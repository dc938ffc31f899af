"""Exact matches on generated data: the share of examples that a run answers without a mistake."""

from collections.abc import Iterable
from math import inf

from rope_exp.data.tasks.rows import TEST
from rope_exp.evidence.runs import Run

# If both rows answer less than this share, or all but it, they cannot be distinguished.
ROOM = 0.01


def count_matches(run: Run, split: str, first: float = -inf, last: float = inf) -> tuple[int, int]:
    """Return the number of examples of these spans, and the number that a run answered right."""
    answers = run.probes.get("answers", {}).get(split)
    if answers is None:
        return 0, 0
    columns = zip(answers["span"], answers["count"], answers["right"], strict=True)
    inside = [(count, right) for span, count, right in columns if first <= span <= last]
    return sum(count for count, _ in inside), sum(right for _, right in inside)


def share_right(run: Run, split: str, first: float = -inf, last: float = inf) -> float | None:
    """Return the share of these examples that a run answered right; None if it has none."""
    count, right = count_matches(run, split, first, last)
    return right / count if count else None


def is_too_easy(runs: Iterable[Run]) -> bool:
    """Return whether all runs with answers solve almost all examples like those in training.

    Then neither losses nor matches show which is better (docs/protocol.md, section 8).
    """
    shares = [share for run in runs if (share := share_right(run, TEST)) is not None]
    return bool(shares) and min(shares) >= 1 - ROOM
