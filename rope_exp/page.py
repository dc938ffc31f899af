"""The page results/report.html: one offline file that shows every setting of every campaign.

A setting is one table of a campaign. The page contains tables as HTML and figures as SVG images,
and loads nothing else. It has no script: all settings but the first are closed `<details>`. Its
Content-Security-Policy forbids all traffic. The same records give the same bytes.
"""

import base64
from collections.abc import Mapping, Sequence
from importlib.resources import files

from jinja2 import Environment, StrictUndefined

from rope_exp.config import RunConfig
from rope_exp.errors import visible
from rope_exp.folder import Run
from rope_exp.report import Report, main_table
from rope_exp.tables import Table, millions

# The columns of a setting's table with which the page begins, since a narrow screen shows them
# alone, and those that only its files have.
FIRST = ("name", "delta", "marked", "interval")
LEFT_OUT = ("rotates", "perplexity", "bits_per_byte")


def page(tables: Mapping[str, Report], runs: Sequence[Run], answer: str = "") -> bytes:
    """Return the page of all settings.

    Args:
        tables: the settings, by the folder of their files. The one with the most published
            relations comes first.
        runs: all runs on record, which are counted.
        answer: the paragraphs that the page opens on, with `**` around strong words; empty: what
            the first setting's tests show.
    Returns:
        The file.
    """
    # It escapes everything that it does not mark as safe.
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    functions = (image, cells, page_table, setting_name)
    environment.globals.update({function.__name__: function for function in functions})
    settings = sorted(
        tables.items(),
        key=lambda item: (-len(item[1].pairs["published"]), -len(item[1].runs), item[0]),
    )
    campaigns: dict[str, list[tuple[str, Report]]] = {}
    for place, report in settings:
        campaigns.setdefault(place.partition("/")[0], []).append((place, report))

    folder = files("rope_exp")
    template = folder.joinpath("page.html.j2").read_text(encoding="utf-8")
    text = environment.from_string(template).render(
        style=folder.joinpath("page.css").read_text(encoding="utf-8"),
        answer=answer.strip().split("\n\n") if answer else [],
        num_runs=len(runs),
        hours=sum(run.result.get("wall_s", 0) for run in runs) / 3600,
        settings=settings,
        campaigns=campaigns,
    )
    return visible(text).encode()


def page_table(report: Report) -> Table:
    """Return a setting's table for the page: differences and verdicts first."""
    table = main_table(report).without(*LEFT_OUT)
    first = [column for key in FIRST for column in table.columns if column.key == key]
    return Table([*first, *table.without(*FIRST).columns], table.frame)


def setting_name(config: RunConfig) -> str:
    """Return the corpus, tokens and warmup steps of a run: `English, 2M tokens, warmup 100`."""
    name = str(config.data.name)
    corpus = {"wikipedia-en-good-featured": "English"}.get(name, name)
    # Two digits are enough to distinguish token budgets.
    tokens = millions(float(f"{config.train.num_tokens:.2g}"))
    return f"{corpus}, {tokens} tokens, warmup {config.num_warmup_steps}"


def cells(markdown: str) -> list[list[str]]:
    """Return the cells of a Markdown table by line: headings, the rule, and the others."""
    lines = (line.removeprefix("| ").removesuffix(" |") for line in markdown.splitlines())
    return [[cell.replace(r"\|", "|") for cell in line.split(" | ")] for line in lines]


def image(report: Report, name: str) -> str | None:
    """Return a figure as the address of an image, or None if the report does not allow it."""
    svg = report.charts.get(name)
    return None if svg is None else f"data:image/svg+xml;base64,{base64.b64encode(svg).decode()}"
