"""The look of a row: its colour, marker and line, which depend only on its label.

A variant looks the same in every figure. For the 16 subsets, the hue and the fill of the marker
show which of Q and K rotate, and the dash and the shape of the marker which of V and O. No two are
alike, even in grey. A user's own variants have other hues, other markers and their own dash.
"""

import hashlib
from typing import Any

from rope_exp.config.variants import SUBSETS

# After Paul Tol's "high contrast" scheme: distinct for colour-blind readers and in grey.
_HUES = {"": "#BB5566", "q": "#000000", "k": "#C8961E", "qk": "#004488"}
# The filled side of the marker: left for Q, right for K.
_FILLS = {"": "none", "q": "left", "k": "right", "qk": "full"}
_DASHES = {"": "-", "v": "--", "o": "-.", "vo": ":"}
_MARKERS = {"": "o", "v": "v", "o": "^", "vo": "D"}

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
_OTHER_MARKERS = "sP<>phX*d"
_OWN_DASH = (0, (6, 1.2, 1.2, 1.2, 1.2, 1.2))

_SITES = {f"{''.join(sites)}_rope" if sites else "nope": sites for sites in SUBSETS}


def look(label: str, number: int = 0) -> dict[str, Any]:
    """Return the look of a row, as keywords of matplotlib's lines.

    Args:
        label: a variant, which looks the same everywhere, or a setting such as optim.lr=0.003.
        number: the row's place, which determines the look of rows that are not variants.
    """
    if found := parts(label):
        scores, values = found
        return _filled(_HUES[scores], _MARKERS[values], _DASHES[values], _FILLS[scores])
    if "=" in label:
        # After nine rows, the hues repeat with other markers.
        marker = _OTHER_MARKERS[(number + number // 9) % 9]
        return _filled(_OTHER_HUES[number % 9], marker, "-", "full")

    # Different digits of one hash choose hue and marker, so they vary independently.
    place = int(hashlib.sha256(label.encode()).hexdigest(), 16)
    marker = _OTHER_MARKERS[place // 9 % 9]
    return _filled(_OTHER_HUES[place % 9], marker, _OWN_DASH, "full")


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


def _filled(color: str, marker: str, linestyle: Any, fill: str) -> dict[str, Any]:
    """Return a look. Unfilled parts of a marker are white, so that no line shows through."""
    hollow = fill == "none"
    return {
        "color": color,
        "marker": marker,
        "linestyle": linestyle,
        "fillstyle": "full" if hollow else fill,
        "markerfacecolor": "white" if hollow else color,
        "markerfacecoloralt": "white",
    }
