"""Throughput against size: us, the peers, and the limit."""

import json
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from rope_exp.system.errors import ConfigError

STYLES: dict[str, dict[str, Any]] = {
    "ours": {"color": "#1f4e79", "marker": "o", "linewidth": 2.0, "zorder": 3},
    "bare": {"color": "#7fa7c9", "marker": ".", "linestyle": ":"},
    "Trainer eager": {"color": "#c0504d", "marker": "s"},
    "Trainer compiled": {"color": "#e08e45", "marker": "^"},
    "litgpt": {"color": "#6a8f3c", "marker": "D"},
}
LABELS = {
    "ours": "rope_exp",
    "bare": "the same model, bare loop",
    "Trainer eager": "transformers' Trainer, eager",
}
LABELS |= {"Trainer compiled": "transformers' Trainer, compiled"}


def draw(folder: Path) -> Path:
    """Draw every speed-*.json of `folder` into throughput.png there."""
    files = [json.loads(path.read_text(encoding="utf-8")) for path in folder.glob("speed-*.json")]
    if not files:
        raise ConfigError("--out", str(folder), "holds no result of the part speed to draw")
    device, found = files[0]["on"]["device"], [file["result"] for file in files]
    found.sort(key=lambda speed: speed["params"])
    figure, axes = plt.subplots(figsize=(7, 4.5), layout="constrained")
    for arm, style in STYLES.items():
        points = [
            (speed["params"], speed["arms"][arm]["tokens_per_s"])
            for speed in found
            if arm in speed["arms"]
        ]
        if points:
            axes.plot(*zip(*points, strict=True), label=LABELS.get(arm, arm), **style)
    limit = [
        (speed["params"], speed["tokens_per_step"] / speed["floor"]["floor_s"]) for speed in found
    ]
    axes.plot(
        *zip(*limit, strict=True),
        color="0.5",
        linestyle="--",
        label="products of matrices alone",
        zorder=1,
    )
    axes.set(xscale="log", yscale="log", xlabel="parameters", ylabel="tokens a second")
    axes.set_title(
        f"Training throughput, {found[0]['precision']}, {device}", loc="left", fontsize=10
    )
    axes.grid(which="both", color="0.92")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8)
    path = folder / "throughput.png"
    figure.savefig(path, dpi=150)
    return path
