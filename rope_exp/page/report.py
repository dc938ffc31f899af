"""The page results/report.html: one offline file that shows every setting of every campaign.

A setting is one table of a campaign. The page contains tables as HTML and figures as SVG images,
and loads nothing else. It has no script: settings but the first are closed `<details>`. Its
Content-Security-Policy forbids all traffic. The same records give the same bytes.
"""

import base64
from collections.abc import Mapping, Sequence
from importlib.resources import files

from jinja2 import Environment, StrictUndefined

from rope_exp.report import Report, main_table, relations_table, setting_name
from rope_exp.runs import Run


def page(tables: Mapping[str, Report], runs: Sequence[Run]) -> bytes:
    """Return the page of all settings.

    Args:
        tables: the report of each setting, by the folder of its files.
        runs: all runs on record. Some are in no table, others in several.
    """
    # It escapes everything that it does not mark as safe.
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    functions = (image, cells, main_table, relations_table)
    environment.globals.update({function.__name__: function for function in functions})
    folder = files("rope_exp.page")
    template = folder.joinpath("page.html.j2").read_text(encoding="utf-8")
    text = environment.from_string(template).render(
        style=folder.joinpath("page.css").read_text(encoding="utf-8"),
        num_runs=len(runs),
        hours=sum(run.result.get("wall_s", 0) for run in runs) / 3600,
        settings=ordered(tables),
    )
    return text.encode()


def ordered(tables: Mapping[str, Report]) -> list[tuple[str, str, Report]]:
    """Return the place, the name and the report of each setting, sorted by tokens and name.

    The one that tests the most published relations, with the most runs, comes first.
    """
    settings = []
    for place, report in tables.items():
        # The page's own folder, of a group without a campaign, has no name.
        campaign = "" if place == "." else f" ({place})"
        settings.append((place, f"{setting_name(report.runs[0].config)}{campaign}", report))
    settings.sort(key=lambda setting: (setting[2].runs[0].config.train.num_tokens, setting[1]))
    first = max(settings, key=lambda item: (len(item[2].relations), len(item[2].runs)), default=())
    return sorted(settings, key=lambda setting: setting is not first)


def cells(markdown: str) -> list[list[str]]:
    """Return the cells of a Markdown table by line: headings, the rule, and the others."""
    lines = (line.removeprefix("| ").removesuffix(" |") for line in markdown.splitlines())
    return [line.split(" | ") for line in lines]


def image(report: Report, name: str) -> str | None:
    """Return a figure as the address of an image, or None if the report does not allow it."""
    svg = report.charts.get(name)
    return None if svg is None else f"data:image/svg+xml;base64,{base64.b64encode(svg).decode()}"
