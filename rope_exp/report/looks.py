"""The look of a row: its colour, marker and dash, which depend only on its label.

A variant looks the same in every figure. For the 16 subsets, the hue and the fill of the marker
show which of Q and K rotate, and the dash and the shape of the marker which of V and O. No two are
alike, even in grey. A user's own variants have other hues, other markers and their own dash.
"""

import hashlib
from typing import Any

from rope_exp.config.variants import SUBSETS

# After Paul Tol's "high contrast" scheme: distinct for colour-blind readers and in grey.
_HUES = {"": "#BB5566", "q": "#000000", "k": "#C8961E", "qk": "#004488"}
# Pixels of line and gap in turn.
_DASHES = {"": [1, 0], "v": [7, 3], "o": [7, 3, 2, 3], "vo": [2, 3]}
# SVG paths of the markers, from -1 to 1: the outline, its left half and its right half.
_MARKERS = {
    "": (
        "M0,-1A1,1,0,0,1,0,1A1,1,0,0,1,0,-1Z",
        "M0,-1A1,1,0,0,0,0,1Z",
        "M0,-1A1,1,0,0,1,0,1Z",
    ),
    "v": ("M0,1L1,-.8L-1,-.8Z", "M0,1L0,-.8L-1,-.8Z", "M0,1L0,-.8L1,-.8Z"),
    "o": ("M0,-1L1,.8L-1,.8Z", "M0,-1L0,.8L-1,.8Z", "M0,-1L0,.8L1,.8Z"),
    "vo": ("M0,-1.1L1.1,0L0,1.1L-1.1,0Z", "M0,-1.1L0,1.1L-1.1,0Z", "M0,-1.1L0,1.1L1.1,0Z"),
}
_NOTHING = "M0,0Z"

# Paul Tol's "muted" scheme, for rows that are no subset.
_OTHER_HUES = (
    "#332288",
    "#88CCEE",
    "#44AA99",
    "#CC6677",
    "#117733",
    "#777777",
    "#DDCC77",
    "#882255",
    "#AA4499",
)
# A square, a plus, two triangles, a pentagon, a hexagon, a cross, a star and a thin diamond.
_OTHER_MARKERS = (
    "M-.85,-.85L.85,-.85L.85,.85L-.85,.85Z",
    "M-.35,-1L.35,-1L.35,-.35L1,-.35L1,.35L.35,.35L.35,1L-.35,1L-.35,.35L-1,.35L-1,-.35L-.35,-.35Z",
    "M-1,0L.8,-1L.8,1Z",
    "M1,0L-.8,-1L-.8,1Z",
    "M0,-1L.95,-.31L.59,.81L-.59,.81L-.95,-.31Z",
    "M0,-1L.87,-.5L.87,.5L0,1L-.87,.5L-.87,-.5Z",
    "M0,-.5L.5,-1L1,-.5L.5,0L1,.5L.5,1L0,.5L-.5,1L-1,.5L-.5,0L-1,-.5L-.5,-1Z",
    "M0,-1.1L.26,-.36L1.05,-.34L.42,.14L.65,.89L0,.44L-.65,.89L-.42,.14L-1.05,-.34L-.26,-.36Z",
    "M0,-1.2L.7,0L0,1.2L-.7,0Z",
)
_OWN_DASH = [12.0, 2.4, 2.4, 2.4, 2.4, 2.4]

_SITES = {f"{''.join(sites)}_rope" if sites else "nope": sites for sites in SUBSETS}


def look(label: str, number: int = 0) -> dict[str, Any]:
    """Return the look of a row: `color`, `dash`, and the marker's paths `outline` and `filled`.

    Args:
        label: a variant, which looks the same everywhere, or a setting such as optim.lr=0.003.
        number: the row's place, which determines the look of rows that are not variants.
    """
    if found := parts(label):
        scores, values = found
        outline, left, right = _MARKERS[values]
        filled = {"": _NOTHING, "q": left, "k": right, "qk": outline}[scores]
        return _look(_HUES[scores], _DASHES[values], outline, filled)
    if "=" in label:
        # After nine rows, the hues repeat with other markers.
        marker = _OTHER_MARKERS[(number + number // 9) % 9]
        return _look(_OTHER_HUES[number % 9], _DASHES[""], marker, marker)

    # Different digits of one hash choose hue and marker, so they vary independently.
    place = int(hashlib.sha256(label.encode()).hexdigest(), 16)
    marker = _OTHER_MARKERS[place // 9 % 9]
    return _look(_OTHER_HUES[place % 9], _OWN_DASH, marker, marker)


def parts(label: str) -> tuple[str, str] | None:
    """Return which of Q and K and which of V and O a subset rotates, such as ("qk", "v").

    None for a label that is no subset of the sites.
    """
    if label not in _SITES:
        return None
    sites = _SITES[label]
    scores = "".join(site for site in sites if site in "qk")
    values = "".join(site for site in sites if site in "vo")
    return scores, values


def _look(color: str, dash: list[Any], outline: str, filled: str) -> dict[str, Any]:
    return {"color": color, "dash": dash, "outline": outline, "filled": filled}
