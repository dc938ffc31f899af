"""What a report shows: a comparison, the reference, and what the losses say beside it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rope_exp.evidence import published
from rope_exp.evidence.comparable import Comparison, Row
from rope_exp.evidence.contrasts import Contrast, compare, kendall_tau, shared_means
from rope_exp.evidence.runs import ReportError, Run


@dataclass(frozen=True)
class Report:
    """All that tables, sentences and figures are made from."""

    comparison: Comparison
    reference: str  # a label; the comparison need not have it
    contrasts: Mapping[str, Contrast]  # by label, best first
    published: Mapping[str, float]  # losses by label; none where rows are not variants
    tau: tuple[float | None, int]  # ours and the published order; None: undefined
    left_out: Sequence[str]  # folders that hold no run

    @property
    def rows(self) -> list[Row]:
        """The rows, best first."""
        return [self.comparison.rows[label] for label in self.contrasts]

    @property
    def runs(self) -> list[Run]:
        """Every run, by label and seed."""
        return self.comparison.runs

    @property
    def groups(self) -> str:
        """The groups that the runs come from."""
        return ", ".join(sorted({run.group for run in self.runs}))

    @property
    def reference_row(self) -> Row | None:
        """The reference's runs."""
        return self.comparison.rows.get(self.reference)

    @property
    def reference_name(self) -> str:
        """The reference as a person writes it."""
        return self.reference_row.name if self.reference_row else self.reference

    def published_delta(self, label: str) -> float | None:
        """The published difference of a variant to the reference."""
        known = label in self.published and self.reference in self.published
        return self.published[label] - self.published[self.reference] if known else None


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
    losses = {label: row.losses for label, row in comparison.rows.items()}
    theirs: Mapping[str, float] = {}
    usual = next(iter(losses))
    if comparison.of_variants:
        theirs = published.LOSSES
        usual = published.REFERENCE

    report = Report(
        comparison=comparison,
        reference=reference or usual,
        contrasts=compare(losses, reference or usual),
        published=theirs,
        tau=kendall_tau(shared_means(losses), theirs),
        left_out=left_out,
    )
    if reference and not report.reference_row:
        raise ReportError(
            f"--reference {reference} is no variant of group {report.groups}, which has "
            f"{', '.join(losses)}"
        )
    return report
