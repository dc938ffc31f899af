"""How a variant is drawn: its colour, marker and line, keyed by its label alone.

A variant looks the same in every figure. The nine have a colour each, the seven other subsets of
the sites share them dashed, a user's own variants dotted.
"""

import hashlib
from typing import Any

from rope_exp.config.variants import SUBSETS

# Paul Tol's "muted" scheme, made for colour-blind readers.
_NINE = {
    "qk_rope": "#332288",
    "qkvo_rope": "#88CCEE",
    "k_rope": "#44AA99",
    "vo_rope": "#CC6677",
    "qkv_rope": "#117733",
    "nope": "#777777",
    "o_rope": "#DDCC77",
    "q_rope": "#882255",
    "v_rope": "#AA4499",
}
_COLOURS = tuple(_NINE.values())
_MARKERS = "os^vD<>ph"

_SUBSETS = [f"{''.join(sites)}_rope" for sites in SUBSETS if sites]
_OTHERS = [label for label in _SUBSETS if label not in _NINE]


def look(label: str, number: int = 0) -> dict[str, Any]:
    """Return the look of a row, in matplotlib's words.

    Args:
        label: a variant's, which has one look everywhere; or one such as optim.lr=0.003.
        number: its place among the rows, by which those that are no variants are told apart.
    """
    line = "-"
    # Who shares a colour with one of the nine has another marker.
    shift = 5
    if label in _NINE:
        number = list(_NINE).index(label)
        shift = 0
    elif label in _OTHERS:
        number = _OTHERS.index(label)
        line = "--"
    elif "=" not in label:
        number = int(hashlib.sha256(label.encode()).hexdigest(), 16)
        line = ":"

    place = number % len(_COLOURS)
    return {"color": _COLOURS[place], "marker": _MARKERS[place - shift], "linestyle": line}
