"""The page results/report.html: one offline file that shows every setting of every campaign.

It contains tables as HTML, figures as Vega-Lite specifications, and the library that draws them,
and loads nothing else. Its Content-Security-Policy forbids all traffic and allows only the two
scripts with the listed hashes. The same records give the same bytes.
"""

import base64
import hashlib
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, StrictUndefined, Template

from rope_exp.evidence.runs import Run
from rope_exp.report.assumptions import assumptions
from rope_exp.report.charts.curves import curves
from rope_exp.report.charts.forest import forest
from rope_exp.report.charts.grid import grid
from rope_exp.report.charts.style import spec_of
from rope_exp.report.charts.svg import CONFIG
from rope_exp.report.content import Report
from rope_exp.report.page_settings import answer, answers, at_a_glance, menu, named, page_table
from rope_exp.report.pairs import relations_columns, relations_frame
from rope_exp.report.sentences import caption, notes, summary
from rope_exp.report.tables import columns, frame

# Functions that the template calls.
_CHARTS = (curves, forest, grid, spec_of)
_WORDS = (answer, answers, assumptions, caption, notes, summary)
_TABLES = (columns, frame, menu, page_table, relations_columns, relations_frame)
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
    style = _asset("page.css")
    script = _closed(_asset("page.js"))
    library = chart_library()

    text = _template().render(
        policy=policy([library, script], style),
        style=style,
        library=library,
        script=script,
        config=CONFIG,
        num_runs=len(runs),
        hours=sum(run.result.get("wall_s", 0) for run in runs) / 3600,
        settings=settings,
        glance=at_a_glance(settings),
    )
    return text.encode()


def policy(scripts: Sequence[str], style: str) -> str:
    """Return the policy: allow the scripts and the style with these hashes, and nothing else."""
    allowed = " ".join(map(_source, scripts))
    return (
        f"default-src 'none'; script-src {allowed}; style-src {_source(style)}; "
        "base-uri 'none'; form-action 'none'"
    )


@cache
def chart_library() -> str:
    """Return vega, vega-lite and vega-embed as one script."""
    # Imported here because it loads a JavaScript engine, which only this page needs.
    from vl_convert import javascript_bundle

    # An unescaped end tag would close the surrounding element.
    return _closed(javascript_bundle("window.vegaEmbed = vegaEmbed;")).replace(
        "</script", "<\\/script"
    )


def _template() -> Template:
    """Return the template. It escapes everything that it does not mark as safe."""
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    # `tojson` writes <, >, & and ' as escapes, so it may appear in a script element.
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    environment.globals.update(PARTS)
    return environment.from_string(_asset("page.html.j2"))


def _closed(script: str) -> str:
    """Wrap a script in a function, so its names stay local."""
    return f'(() => {{\n"use strict";\n{script}\n}})();'


def _source(content: str) -> str:
    digest = hashlib.sha256(content.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def _asset(name: str) -> str:
    return files("rope_exp.report").joinpath("assets", name).read_text(encoding="utf-8")
