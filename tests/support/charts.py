"""Readers of a chart's content, from its Vega-Lite specification and its SVG file."""

from collections.abc import Iterator
from typing import Any
from xml.etree import ElementTree

from rope_exp.figures.style import svg_of

# Up to this width, text of 11 pixels has at least 7 points when printed at 6.75 inches.
WIDEST = 11 / 7 * 72 * 6.75
_TEXT = "{http://www.w3.org/2000/svg}text"


def records(chart: Any, key: str) -> list[dict[str, Any]]:
    datasets = chart.to_dict()["datasets"].values()
    return next((lines for lines in datasets if lines and key in lines[0]), [])


def parts(spec: Any) -> Iterator[dict[str, Any]]:
    """Yield every object of a specification, at any depth."""
    if isinstance(spec, dict):
        yield spec
    for each in spec.values() if isinstance(spec, dict) else spec:
        if isinstance(each, dict | list):
            yield from parts(each)


def domain(chart: Any, field: str) -> list[Any]:
    """Return the first scale domain of a channel that encodes this field."""
    found = (each for each in parts(chart.to_dict()) if each.get("field") == field)
    return list(
        next(each["scale"]["domain"] for each in found if "domain" in each.get("scale", {}))
    )


def words(chart: Any) -> list[str]:
    svg = ElementTree.fromstring(svg_of(chart.to_dict()))
    drawn = [text.text or "" for text in svg.iter(_TEXT)]
    return [*drawn, explanation(chart)]


def explanation(chart: Any) -> str:
    return " ".join(chart.to_dict()["title"]["text"])
