"""Figures of the results: throughput against size; time and memory against tokens."""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from rope_exp.system.errors import ConfigError
from rope_exp.system.files import read_json


def draw(folder: Path) -> list[Path]:
    """Draw all results of speed, decode and length in a folder anew.

    Raises:
        ConfigError: it holds none.
    """
    found = [draw_contexts(path) for path in sorted(folder.glob("decode-*.json"))]
    found += [draw_contexts(path) for path in sorted(folder.glob("length-*.json"))]
    if any(folder.glob("speed-*.json")):
        found.append(draw_throughput(folder))
    if not found:
        raise ConfigError("--out", str(folder), "holds no result of speed, decode or length")
    return found


def draw_contexts(results: Path) -> Path:
    """Draw each arm's time and memory against tokens, from decode-*.json or length-*.json."""
    part = results.stem.partition("-")[0]
    result = read_json(results)["result"]
    figure, (times, sizes) = plt.subplots(1, 2, figsize=(9, 4.2), layout="constrained")
    for number, (arm, found) in enumerate(result["arms"].items()):
        style = {"marker": "osD^vP*X"[number % 8], "linestyle": ["-", "--", ":"][number % 3]}
        if part == "decode":
            rates = [1 / each for each in found["token_s"]]
            kept = f"{found['cached']} a token" if found["cached"] else "a state"
            times.plot(result["contexts"], rates, label=f"{arm} ({kept})", **style)
            sizes.plot(result["contexts"], found["kept_bytes"], **style)
        else:
            times.plot(result["lengths"], found["pass_s"], label=arm, **style)
            if None not in found["peak_bytes"]:
                sizes.plot(result["lengths"], found["peak_bytes"], **style)

    if part == "decode":
        times.set(ylabel="decoded tokens a second", xlabel="tokens before")
        sizes.set(ylabel="bytes kept", xlabel="tokens before", yscale="log")
    else:
        times.set(ylabel="seconds of a pass", xlabel="tokens of the text", yscale="log")
        sizes.set(ylabel="bytes at its height", xlabel="tokens of the text", yscale="log")
    places = result["contexts" if part == "decode" else "lengths"]
    for axes in (times, sizes):
        axes.set_xscale("log")
        axes.set_xticks(places, [f"{place:,}" for place in places])
        axes.minorticks_off()
        axes.grid(color="0.92")
    figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=8)
    path = results.with_suffix(".png")
    figure.savefig(path, dpi=150)
    plt.close(figure)
    return path


def draw_throughput(folder: Path) -> Path:
    """Draw every speed-*.json of a folder into throughput.png there."""
    files = [read_json(path) for path in folder.glob("speed-*.json")]
    speeds = sorted((file["result"] for file in files), key=lambda speed: speed["params"])

    figure, axes = plt.subplots(figsize=(7, 4.5), layout="constrained")
    for arm in speeds[0]["arms"]:
        having = [speed for speed in speeds if arm in speed["arms"]]
        sizes = [speed["params"] for speed in having]
        rates = [speed["arms"][arm]["tokens_per_s"] for speed in having]
        axes.plot(sizes, rates, "o-", label=arm)
    sizes = [speed["params"] for speed in speeds]
    limit = [speed["tokens_per_step"] / speed["floor"]["floor_s"] for speed in speeds]
    axes.plot(sizes, limit, "--", color="0.5", label="products of matrices alone")

    title = f"Training throughput, {speeds[0]['precision']}, {files[0]['on']['device']}"
    axes.set_title(title, loc="left", fontsize=10)
    axes.set(xscale="log", yscale="log", xlabel="parameters", ylabel="tokens a second")
    axes.grid(which="both", color="0.92")
    axes.legend(frameon=False, fontsize=8)
    path = folder / "throughput.png"
    figure.savefig(path, dpi=150)
    plt.close(figure)
    return path
