"""Figure of the torture script: recorded rows over time, with one panel per episode."""

import io
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot

COLOURS = {
    "start": "#7f7f7f",
    "preparation": "#8c564b",
    "first step": "#9467bd",
    "step": "#1f77b4",
    "evaluation": "#ff7f0e",
    "save": "#d62728",
}


def draw(episodes: list[dict[str, Any]]) -> bytes:
    """Return the figure as a PNG; at each kill, the run falls back to its last checkpoint."""
    figure, axes = pyplot.subplots(
        len(episodes), 1, figsize=(9, 1.3 * len(episodes) + 1), squeeze=False, sharex=True
    )
    for axis, episode in zip(axes[:, 0], episodes, strict=True):
        seconds, rows = zip(*episode["curve"], strict=True)
        axis.plot(seconds, rows, color="0.35", linewidth=1.2, drawstyle="steps-post")
        for kill in episode["kills"]:
            colour = COLOURS[kill["seen"]]
            axis.plot(kill["at"], kill["step"], "x", color=colour, markersize=8, markeredgewidth=2)

        verdict = "equal, bit for bit" if episode["equal"] else "NOT EQUAL"
        title = f"{episode['kind']}, {len(episode['kills'])} kills: {verdict}"
        axis.set_title(title, fontsize=9, loc="left")
        axis.set_ylabel("rows")
        axis.spines[["top", "right"]].set_visible(False)

    axes[-1, 0].set_xlabel("seconds since the run was first started")
    handles = [
        pyplot.Line2D([], [], color=colour, marker="x", linestyle="", markeredgewidth=2)
        for colour in COLOURS.values()
    ]
    labels = [f"killed in {moment}" for moment in COLOURS]
    figure.legend(handles, labels, loc="upper center", ncols=6, fontsize=8, frameon=False)
    figure.tight_layout(rect=(0, 0, 1, 1 - 0.35 / figure.get_figheight()))

    image = io.BytesIO()
    figure.savefig(image, dpi=130, metadata={"Software": None})
    return image.getvalue()
