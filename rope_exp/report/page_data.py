"""The data embedded in the page: every level, judged against every reference, as plain data.

The browser computes only the positions of marks. Numbers are numbers and texts are texts. A table
has columns and cells; each cell has a displayed text and a sort key.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from rope_exp.evidence.runs import Run
from rope_exp.evidence.significance import MARGIN
from rope_exp.report.answers import fits, matches
from rope_exp.report.assumptions import assumptions
from rope_exp.report.by_tokens import SHOWN_FROM
from rope_exp.report.content import Line, Report, refer, standard
from rope_exp.report.levels import TITLES, Level, find_levels
from rope_exp.report.looks import look, parts
from rope_exp.report.page_curves import curves, differences
from rope_exp.report.page_marks import dashes, filled, outline
from rope_exp.report.page_tables import page_table, runs_table
from rope_exp.report.pairs import relations_columns, relations_frame
from rope_exp.report.sentences import caption, notes, summary
from rope_exp.report.tables import WORDS, columns, frame

# Note on a view for which docs/protocol.md plans no family of tests.
EXPLORATION = (
    "This view is exploration: docs/protocol.md plans differences to one row within one campaign. "
    "What another reference or joined campaigns show is a question for new runs, and no result."
)


def page_data(campaigns: Mapping[str, Sequence[Run]]) -> dict[str, Any]:
    """Return all data of the page.

    Args:
        campaigns: the runs of each campaign, by its name.
    Raises:
        ReportError: the runs of a campaign's level may not share a table.
    """
    ordered = {
        name: sorted(campaigns[name], key=lambda run: run.where) for name in sorted(campaigns)
    }
    runs = [run for each in ordered.values() for run in each]
    levels = find_levels(ordered)
    return {
        "margin": MARGIN,
        "shown_from": SHOWN_FROM,
        "facets": _facets(levels),
        "levels": [_level(level) for level in levels],
        "start": _start(levels),
        "runs": runs_table(runs),
        "hours": round(sum(run.result.get("wall_s", 0) for run in runs) / 3600, 2),
    }


def _facets(levels: Sequence[Level]) -> list[dict[str, Any]]:
    """Return the choices of a reader: each facet, its title, and its ordered values."""
    keys = dict.fromkeys(key for level in levels for key in level.facets)
    found = []
    for key in keys:
        values = sorted({level.facets[key] for level in levels})
        title = TITLES.get(key, key)
        found.append({"key": key, "title": title, "values": [value.text for value in values]})
    return found


def _start(levels: Sequence[Level]) -> int:
    """Return the index of the first level: prefer unjoined, then most losses."""

    def weight(n: int) -> tuple[bool, int]:
        level = levels[n]
        return not level.joined, level.num_losses

    # Among equal levels, `max` returns the first.
    return max(range(len(levels)), key=weight, default=0)


# -- one level -------------------------------------------------------------------------------------


def _level(level: Level) -> dict[str, Any]:
    report = level.report
    drawn = curves(report.rows)
    references = [label for label, row in report.rows.items() if row.losses]
    against = {}
    for label in references:
        against[label] = _against(refer(report, label), drawn["tokens"], level)

    return {
        "facets": {key: choice.text for key, choice in level.facets.items()},
        "unit": report.unit,
        "margin_unit": report.margin_unit,
        "summary": summary(report),
        "rows": [_row(row) for row in report.rows.values()],
        "runs": [run.where for run in report.runs],
        "curves": drawn,
        "published": report.published.short if report.published else None,
        "source": report.source.cited if report.source else None,
        "relations": _relations(report),
        "answers": answers_table(report),
        "assumptions": assumptions(report),
        "reference": report.reference.label if references else None,
        "against": against,
    }


def _relations(report: Report) -> dict[str, Any]:
    found = relations_frame(report)
    pairs = [f"{each.judged.a} {each.judged.b}" for each in report.relations]
    return page_table(relations_columns(report), found, pairs)


def answers_table(report: Report) -> dict[str, Any]:
    """Return the answers on generated data: exact matches, or else R²; no rows without either."""
    shown, found = matches(report)
    if found.empty:
        shown, found = fits(report)
    return page_table(shown, found, found["label"] if len(found) else ())


def _row(row: Line) -> dict[str, Any]:
    """Return the data of a row that do not depend on the reference: names, look, grid cell."""
    style = look(row.label, row.number)
    pe = row.runs[0].config.pe
    return {
        "label": row.label,
        "name": row.name,
        "color": style["color"],
        "path": outline(style),
        "fill": filled(style),
        "dash": dashes(style),
        "cell": parts(row.label),
        "rotate": " ".join(pe.rotate),
        "loss": row.ours.loss_mean,
        "seeds": row.ours.num_seeds,
        "verdict": row.verdict,
        "mark": row.mark,
        "published": row.theirs.loss_mean,
    }


def _against(report: Report, tokens: Sequence[int], level: Level) -> dict[str, Any]:
    """Return the data of a level that depend on the reference."""
    said = notes(report)
    if level.joined:
        names = " and ".join(level.joined)
        said.insert(
            0,
            f"Rows of the campaigns {names}, joined for this page: more rows are tested together "
            "than in either's own table, so adjusted values differ from those.",
        )
    if level.joined or report.reference.label != standard(report.rows, report.keys):
        said.insert(0, EXPLORATION)
    return {
        "caption": caption(report),
        "notes": said,
        "rows": {label: _difference(report, row) for label, row in report.rows.items()},
        "differences": differences(report.rows, report.reference, tokens),
        "table": page_table(columns(report), frame(report), report.rows),
    }


def _difference(report: Report, row: Line) -> dict[str, Any]:
    """Return a row's difference to the reference, with interval and verdict."""
    found = {"delta": row.ours.delta, "published": row.theirs.delta}
    judged = report.against.get(row.label)
    if judged is None:
        return found
    return found | {
        "low": judged.low,
        "high": judged.high,
        "wide_low": judged.wide_low,
        "wide_high": judged.wide_high,
        "word": WORDS[judged.verdict],
        "needed": judged.seeds_needed,
    }
