"""The page results/report.html: one offline file that shows every level of every campaign.

It contains the data, the chart library and its own script, and loads nothing else. Its
Content-Security-Policy forbids all traffic and allows only the two scripts with the listed hashes.
The same records give the same bytes.
"""

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

from rope_exp.evidence.runs import ReportError, Run
from rope_exp.report.packing import packed
from rope_exp.report.page_data import page_data

MAX_BYTES = 3_000_000
# For every number in the page: a hundred times finer than the tables print.
DECIMALS = 6
SCRIPTS = ("state.js", "tables.js", "charts.js", "forest.js", "curves.js", "page.js")


def page(campaigns: Mapping[str, Sequence[Run]]) -> bytes:
    """Return the page of all campaigns.

    Args:
        campaigns: the runs of each campaign, by its name.
    Raises:
        ReportError: runs may not share a table, or the page would be larger than `MAX_BYTES`.
    """
    return assemble(page_data(campaigns))


def assemble(data: Mapping[str, Any]) -> bytes:
    """Return one file with data, library, script and style.

    Raises:
        ReportError: the file would be larger than `MAX_BYTES`.
    """
    style = _asset("page.css")
    script = _closed("\n".join(_asset(name) for name in SCRIPTS))
    library = chart_library()
    parts = {
        "@policy@": policy([library, script], style),
        "@style@": style,
        "@data@": embedded(data),
        "@library@": library,
        "@script@": script,
    }

    text = _asset("page.html")
    for mark, part in parts.items():
        before, after = text.split(mark)
        text = before + part + after

    content = text.encode()
    if len(content) > MAX_BYTES:
        raise ReportError(
            f"report.html would have {len(content):,} bytes, and at most {MAX_BYTES:,} are "
            "allowed: it holds too many runs"
        )
    return content


def embedded(data: Mapping[str, Any]) -> str:
    """Return packed data as JSON that is safe in a script element: ASCII, and without <."""
    text = json.dumps(packed(_rounded(data)), separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c")


def _rounded(value: Any) -> Any:
    """Return data with numbers rounded to `DECIMALS`, as further digits would only take space."""
    if isinstance(value, Mapping):
        return {key: _rounded(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(each) for each in value]
    return round(value, DECIMALS) if isinstance(value, float) else value


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


def _closed(script: str) -> str:
    """Wrap a script in a function, so its names stay local."""
    return f'(() => {{\n"use strict";\n{script}\n}})();'


def _source(content: str) -> str:
    digest = hashlib.sha256(content.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def _asset(name: str) -> str:
    return files("rope_exp.report").joinpath("assets", name).read_text(encoding="utf-8")
