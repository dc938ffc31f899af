"""Figure of generated data: the share of right answers, by length or distance of examples."""

from collections import Counter
from collections.abc import Iterator

import altair as alt
import pandas as pd

from rope_exp.report.answers import Part, parts, shares, with_answers
from rope_exp.report.charts.rows import COLOR, key_of, looks, markers, row_lines, with_looks
from rope_exp.report.charts.style import explanation
from rope_exp.report.content import Report
from rope_exp.report.spelling import seeds

_WIDTH = 560
_HEIGHT = 260
# The distance of neighbours in a bin, in bins, which keeps equal values visible.
_APART = 0.06


def answers(report: Report) -> alt.HConcatChart | None:
    """Draw each row's exact matches by bin, all splits in one panel; None if there are none."""
    table = points(report)
    if table.empty or report.task is None:
        return None

    bins = _bins(report)
    names = ", ".join(f"'{part.name}'" for part in bins)
    x = alt.X("place:Q", title=report.task.span)
    x = x.scale(domain=[-0.6, len(bins) - 0.4], nice=False)
    x = x.axis(values=list(range(len(bins))), labelExpr=f"[{names}][datum.value]")
    y = alt.Y("percent:Q", title="exact matches (%)").scale(domain=[-3, 103], nice=False)
    y = y.axis(tickCount=5, grid=True)

    means = table.groupby(["label", "split", "place"], sort=False, as_index=False).mean()
    several = table.groupby(["label", "place"])["percent"].transform("size") > 1
    base = with_looks(means).encode(x=x, y=y)
    # Lines do not go from one split to the next.
    lines = row_lines(base, 1.2, "label:N", "split:N")
    dots = with_looks(table[several]).mark_circle(size=9, opacity=0.5)
    panel = alt.layer(
        *_split_names(bins),
        dots.encode(x=x, y=y, color=COLOR),
        lines,
        *markers(base, size=45),
        width=_WIDTH,
        height=_HEIGHT,
    )
    return alt.hconcat(
        panel,
        key_of(with_answers(report)),
        datasets=looks(report),
        title=explanation(_sentences(report)),
    )


def points(report: Report) -> pd.DataFrame:
    """Return the percentage of exact matches of each row, bin and seed.

    Columns are label, split, place and percent. Places count bins from 0 over all splits;
    rows are a little apart.
    """
    labels = [row.label for row in with_answers(report)]
    apart = {
        label: _APART * (number - (len(labels) - 1) / 2) for number, label in enumerate(labels)
    }
    places = {part.key: place for place, part in enumerate(_bins(report))}
    found = shares(report)
    found["place"] = found["key"].map(places) + found["label"].map(apart)
    found["percent"] = 100 * found["share"]
    return found.loc[found["part"] != "", ["label", "split", "place", "percent"]]


def _bins(report: Report) -> list[Part]:
    """Return the bins of all splits."""
    return [part for part in parts(report) if part.name]


def _split_names(bins: list[Part]) -> Iterator[alt.Chart]:
    """Write each split's name above its bins, and draw a line before all but the first."""
    start = 0
    for split, count in Counter(part.split for part in bins).items():
        middle = start + (count - 1) / 2
        name = alt.Chart().mark_text(text=split, style="quiet")
        yield name.encode(x=alt.XDatum(middle, type="quantitative"), y=alt.YValue(-8))
        if start:
            rule = alt.Chart().mark_rule(style="quiet", strokeDash=[4, 3])
            yield rule.encode(x=alt.XDatum(start - 0.5, type="quantitative"))
        start += count


def _sentences(report: Report) -> Iterator[str]:
    counts = [sum("answers" in run.probes for run in row.runs) for row in with_answers(report)]
    yield (
        f"Group {report.groups}; {seeds(counts)} per row. Markers: means over seeds, drawn side by "
        "side; dots: single seeds."
    )
    if any(part.split == "longer" for part in parts(report)):
        yield "Test: examples like those in training; longer: longer than any in training."
