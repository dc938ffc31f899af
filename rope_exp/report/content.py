"""What a report shows: a comparison, the reference, and what the losses say beside it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rope_exp.evidence import published
from rope_exp.evidence.comparable import Comparison, Row
from rope_exp.evidence.contrasts import Contrast, Losses, compare
from rope_exp.evidence.runs import ReportError


@dataclass(frozen=True)
class Report(Comparison):
    """All that tables, sentences and figures are made from."""

    reference: Row  # without runs where the comparison has none of it
    contrasts: Mapping[str, Contrast]  # by label, best first
    published: Mapping[str, Contrast]  # of every row; without numbers where it is not published
    left_out: Sequence[str]  # folders that hold no run

    @property
    def best_first(self) -> list[Row]:
        """The rows in the order in which they are shown."""
        return [self.rows[label] for label in self.contrasts]

    @property
    def groups(self) -> str:
        """The groups that the runs come from."""
        return ", ".join(sorted({run.group for run in self.runs}))


def build(
    comparison: Comparison, reference: str | None = None, left_out: Sequence[str] = ()
) -> Report:
    """Hold the rows of a comparison against the reference.

    Args:
        comparison: as `comparable` gives it.
        reference: a row's label; None: qk_rope, and no deltas if no variant is that; the first
            row, where rows are not variants.
        left_out: folders that hold no run.
    Raises:
        ReportError: the comparison has no such row.
    """
    rows = comparison.rows
    theirs: dict[str, Losses] = {label: {} for label in rows}
    label = reference or next(iter(rows))
    if comparison.of_variants:
        # Published once, as if by one seed.
        theirs |= {variant: {0: loss} for variant, loss in published.LOSSES.items()}
        label = reference or published.REFERENCE

    report = Report(
        comparison.keys,
        rows,
        reference=rows.get(label, Row(label, label, 0, [])),
        contrasts=compare({row.label: row.losses for row in rows.values()}, label),
        published=compare(theirs, label),
        left_out=left_out,
    )
    if reference and not report.reference.runs:
        raise ReportError(
            f"--reference {reference} is no variant of group {report.groups}, which has "
            f"{', '.join(rows)}"
        )
    return report
