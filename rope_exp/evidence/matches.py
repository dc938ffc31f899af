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


def is_too_easy(runs: Iterable[Run]) -> bool:
    """Return whether all runs with answers solve almost all examples like those in training.

    Then neither losses nor matches show which is better (docs/protocol.md, section 8).
    """
    counts = [count_matches(run, TEST) for run in runs]
    shares = [right / count for count, right in counts if count]
    return bool(shares) and min(shares) >= 1 - ROOM
