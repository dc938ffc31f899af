"""Readers of a matplotlib figure's content."""

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Text


def asked(
    answers: Mapping[str, Sequence[Any]],
    names: Mapping[str, str] | None = None,
    numbers: Mapping[str, int] | None = None,
) -> Any:
    """Return a stand-in for a report, with the rows and answers that a probe's figure reads."""
    rows = {
        label: SimpleNamespace(
            name=(names or {}).get(label, label), number=(numbers or {}).get(label, place)
        )
        for place, label in enumerate(answers)
    }
    given = {label: found for label, found in answers.items() if found}
    return SimpleNamespace(rows=rows, answers=lambda probe: given)


def artists(figure: Figure) -> dict[str, Artist]:
    """Return the artists that have an id, by id, such as `vo_rope delta`."""
    found = figure.findobj(lambda artist: artist.get_gid() is not None)
    return {str(artist.get_gid()): artist for artist in found}


def line(figure: Figure, gid: str) -> tuple[list[float], list[float]]:
    """Return the coordinates of a line's points."""
    drawn = artists(figure)[gid]
    assert isinstance(drawn, Line2D)
    x, y = drawn.get_xdata(), drawn.get_ydata()
    return np.asarray(x, dtype=float).tolist(), np.asarray(y, dtype=float).tolist()


def texts(figure: Figure) -> list[str]:
    """Return every text that is not empty, without line breaks."""
    found: list[Any] = figure.findobj(Text)
    return [" ".join(text.get_text().split()) for text in found if text.get_text().strip()]
