"""The page results/report.html: one offline file that shows every setting of every campaign.

It contains tables as HTML and figures as SVG images, and loads nothing else. It has no script:
settings but the first are closed `<details>`. Its Content-Security-Policy forbids all traffic. The
same records give the same bytes.
"""

import base64
from collections.abc import Callable, Mapping, Sequence
from importlib.resources import files
from typing import Any

from jinja2 import Environment, StrictUndefined, Template

from rope_exp.content import Report
from rope_exp.figures._style import Draw, drawn
from rope_exp.figures.curves import curves
from rope_exp.figures.forest import forest
from rope_exp.figures.grid import grid
from rope_exp.page.settings import answer, answers, at_a_glance, named, page_table
from rope_exp.report import columns, frame, relations_columns, relations_frame
from rope_exp.runs import Run
from rope_exp.words.assumptions import assumptions
from rope_exp.words.sentences import caption, notes, summary


def image(draw: Draw, report: Report) -> str | None:
    """Return a figure as the address of an image, or None if the report does not allow it."""
    svg = drawn(draw, report)
    return None if svg is None else f"data:image/svg+xml;base64,{base64.b64encode(svg).decode()}"


# Functions that the template calls.
_CHARTS = (curves, forest, grid, image)
_WORDS = (answer, answers, assumptions, caption, notes, summary)
_TABLES = (columns, frame, page_table, relations_columns, relations_frame)
PARTS: dict[str, Callable[..., Any]] = {
    part.__name__: part for part in (*_CHARTS, *_WORDS, *_TABLES)
}


def page(tables: Mapping[str, Report], runs: Sequence[Run]) -> bytes:
    """Return the page of all settings.

    Args:
        tables: the report of each setting, by the folder of its files.
        runs: all runs on record. Some are in no table, others in several.
    """
    settings = named(tables)
    text = _template().render(
        style=_asset("page.css"),
        num_runs=len(runs),
        hours=sum(run.result.get("wall_s", 0) for run in runs) / 3600,
        settings=settings,
        glance=at_a_glance(settings),
    )
    return text.encode()


def _template() -> Template:
    """Return the template. It escapes everything that it does not mark as safe."""
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.globals.update(PARTS)
    return environment.from_string(_asset("page.html.j2"))


def _asset(name: str) -> str:
    return files("rope_exp.page").joinpath(name).read_text(encoding="utf-8")
