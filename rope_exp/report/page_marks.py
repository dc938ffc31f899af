"""Looks of rows for the page: matplotlib's markers and dashes as SVG paths and lengths.

A marker lies in a square from -1 to 1. Charts and legends share its two paths: the outline and the
filled part.
"""

from collections.abc import Mapping
from typing import Any

_PATHS = {
    "o": "M0,-1A1,1,0,0,1,0,1A1,1,0,0,1,0,-1Z",
    "^": "M0,-1L1,.8L-1,.8Z",
    "v": "M0,1L1,-.8L-1,-.8Z",
    "D": "M0,-1.1L1.1,0L0,1.1L-1.1,0Z",
    "d": "M0,-1.2L.7,0L0,1.2L-.7,0Z",
    "s": "M-.85,-.85L.85,-.85L.85,.85L-.85,.85Z",
    "<": "M-1,0L.8,-1L.8,1Z",
    ">": "M1,0L-.8,-1L-.8,1Z",
    "p": "M0,-1L.95,-.31L.59,.81L-.59,.81L-.95,-.31Z",
    "h": "M0,-1L.87,-.5L.87,.5L0,1L-.87,.5L-.87,-.5Z",
    "P": "M-.35,-1L.35,-1L.35,-.35L1,-.35L1,.35L.35,.35L.35,1L-.35,1L-.35,.35L-1,.35L-1,-.35"
    "L-.35,-.35Z",
    "X": "M0,-.5L.5,-1L1,-.5L.5,0L1,.5L.5,1L0,.5L-.5,1L-1,.5L-.5,0L-1,-.5L-.5,-1Z",
    "*": "M0,-1.1L.26,-.36L1.05,-.34L.42,.14L.65,.89L0,.44L-.65,.89L-.42,.14L-1.05,-.34L-.26,-.36Z",
}
# The left and the right half of each marker of the subsets.
_HALVES = {
    "o": ("M0,-1A1,1,0,0,0,0,1Z", "M0,-1A1,1,0,0,1,0,1Z"),
    "^": ("M0,-1L0,.8L-1,.8Z", "M0,-1L0,.8L1,.8Z"),
    "v": ("M0,1L0,-.8L-1,-.8Z", "M0,1L0,-.8L1,-.8Z"),
    "D": ("M0,-1.1L0,1.1L-1.1,0Z", "M0,-1.1L0,1.1L1.1,0Z"),
}
_NOTHING = "M0,0Z"
_DASHES = {"-": [1, 0], "--": [7, 3], ":": [2, 3], "-.": [7, 3, 2, 3]}


def shapes(style: Mapping[str, Any]) -> dict[str, Any]:
    """Return a look's marker, as the paths of its outline and its filled part, and its dash."""
    outline = _PATHS[style["marker"]]
    filled = _NOTHING if style["markerfacecolor"] == "white" else outline
    if style["fillstyle"] != "full":
        filled = _HALVES[style["marker"]][style["fillstyle"] == "right"]
    line = style["linestyle"]
    # matplotlib's tuple form is in line widths, and lines are two pixels wide.
    dash = _DASHES[line] if isinstance(line, str) else [2.0 * length for length in line[1]]
    return {"dash": dash, "outline": outline, "filled": filled}
