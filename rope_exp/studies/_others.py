"""The runs of other campaigns."""

from collections.abc import Mapping, Sequence

from rope_exp.runs import Run


def others(place: str, records: Mapping[str, Sequence[Run]]) -> list[Run]:
    """Return the runs of all campaigns but the one to whose folder a table's place belongs."""
    own = place.partition("/")[0]
    return [run for name, runs in records.items() if name != own for run in runs]
