"""Draw the figures of docs/performance.md and docs/reliability.md from results/bench.

    python scripts/bench_figures.py

Each figure lies beside the JSON files that it shows, as SVG, in the style of a report's figures.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import altair as alt
import pandas as pd

from rope_exp.figures import _style as style
from rope_exp.files import write_atomically
from rope_exp.machine import ROOT
from rope_exp.svg import drawn

BENCH = ROOT / "results" / "bench"

# The libraries of speed-*.json, as docs/performance.md names them, and the limit.
_LIBRARIES = {
    "ours": "rope_exp",
    "bare": "our model, bare loop",
    "litgpt": "litgpt, compiled",
    "Trainer compiled": "Trainer, compiled",
    "Trainer eager": "Trainer, eager",
}
_LIMIT = "matrix products and AdamW alone"
# When a process may be killed, in the order of a run.
_PHASES = ("start", "preparation", "first step", "step", "evaluation", "save")


def read(name: str) -> dict[str, Any]:
    """Return a JSON file of results/bench by its path there."""
    content: dict[str, Any] = json.loads((BENCH / name).read_text(encoding="utf-8"))
    return content


def with_looks(table: pd.DataFrame, column: str) -> alt.Chart:
    """Return a chart of a table, with a colour and a marker for each value of a column."""
    names = dict.fromkeys(table[column])
    looks = {name: style.look(f"{column}={name}", number) for number, name in enumerate(names)}
    return alt.Chart(table.join(pd.DataFrame(looks).T, on=column))


def key_of(table: pd.DataFrame, column: str) -> alt.LayerChart:
    """Return a list of the markers and values of a column, to stand beside a chart."""
    names = table[[column]].drop_duplicates()
    y = alt.Y(f"{column}:N", axis=None, sort=list(names[column]))
    base = with_looks(names, column).encode(x=alt.XValue(8), y=y)
    text = base.mark_text(align="left", dx=14).encode(text=f"{column}:N")
    return alt.layer(*style.markers(base, size=60), text, width=16, height=alt.Step(17))


def speeds() -> pd.DataFrame:
    """Return the training speeds: columns library, model and tokens_per_s."""
    lines = []
    for model in ("nano", "10m"):
        result = read(f"cpu/speed-{model}.json")["result"]
        named = f"{model} ({result['params'] / 1e6:.1f}M parameters)"
        limit = result["tokens_per_step"] / result["floor"]["floor_s"]
        lines.append((_LIMIT, named, limit))
        for arm, library in _LIBRARIES.items():
            lines.append((library, named, result["arms"][arm]["tokens_per_s"]))
    return pd.DataFrame(lines, columns=["library", "model", "tokens_per_s"])


def throughput(table: pd.DataFrame) -> alt.HConcatChart:
    """Draw training speeds of libraries."""
    ticks = [2000, 5000, 10_000, 20_000, 50_000, 100_000]
    x = alt.X("tokens_per_s:Q", title="training tokens per second")
    x = x.scale(type="log", domain=[2000, 160_000], nice=False)
    x = x.axis(format=",", values=ticks, grid=True)
    y = alt.Y("library:N", title=None, sort=None)
    y = y.axis(domain=False, ticks=False, labelPadding=8, labelLimit=220)

    base = with_looks(table, "model").encode(x=x, y=y)
    text = base.mark_text(align="left", dx=9).encode(text=alt.Text("tokens_per_s:Q", format=",.0f"))
    panel = alt.layer(*style.markers(base, size=70), text, width=370, height=alt.Step(30))
    title = style.explanation(
        [
            "Training LLaMA in bf16 on two cores of an AMD EPYC, 21 November (cpu/speed-nano.json, "
            "cpu/speed-10m.json). The top row is a limit, computed from the speed of large "
            "products; nothing trains as fast."
        ]
    )
    return alt.hconcat(panel, key_of(table, "model"), title=title)


def kind(arm: str) -> str:
    """Return the kind of attention that an arm of a benchmark measured: `decay, VO`."""
    keys = dict(word.split("=") for word in arm.split())
    name = keys["attn"]
    if "pe" in keys:
        name += f", {keys['pe'].removesuffix('_rope').upper()}"
    return name


def by_size(name: str, sizes: str, seconds: str, num_bytes: str) -> pd.DataFrame:
    """Return the time and the memory of kinds of attention by size.

    Args:
        name: of the benchmark's file.
        sizes: the key of the sizes in its result.
        seconds: the key of an arm's times.
        num_bytes: the key of an arm's memory.
    Returns:
        The columns kind, size, ms and mb.
    """
    result = read(name)["result"]
    tables = []
    for arm, lists in result["arms"].items():
        table = pd.DataFrame({"kind": kind(arm), "size": result[sizes]})
        table["ms"] = 1e3 * pd.Series(lists[seconds])
        table["mb"] = pd.Series(lists[num_bytes]) / 1e6
        tables.append(table)
    return pd.concat(tables, ignore_index=True)


def lengths() -> pd.DataFrame:
    """Return a layer's cost by length: columns kind, size, ms and mb."""
    return by_size("cpu/length-nano.json", "lengths", "pass_s", "peak_bytes")


def length(table: pd.DataFrame) -> alt.HConcatChart:
    """Draw the time and memory of a layer by length."""
    x = alt.X("size:Q", title="length (tokens)")
    panels = [
        _panel(table, x, on_log_axis("ms", "forward and backward pass (ms)")),
        _panel(table, x, on_log_axis("mb", "peak memory of the pass (MB)")),
    ]
    sentence = (
        "One attention layer at nano, QK-RoPE unless a variant is named (cpu/length-nano.json). "
        "Past 2,048 tokens, torch's kernel, which keeps no matrix of weights, replaces ours in "
        "softmax, mla, mla_vo and shared_s2."
    )
    return _beside(panels, table, sentence)


def contexts() -> pd.DataFrame:
    """Return the cost of decoding by context: columns kind, size, ms and mb."""
    return by_size("cpu/decode-nano.json", "contexts", "token_s", "kept_bytes")


def decode(table: pd.DataFrame) -> alt.HConcatChart:
    """Draw the time of a decoded token, and the size of what is cached, by context."""
    x = alt.X("size:Q", title="tokens in the context")
    time = alt.Y("ms:Q", title="time per decoded token (ms)").axis(tickCount=5, grid=True)
    panels = [
        _panel(table, x, time),
        _panel(table, x, on_log_axis("mb", "cache of the model (MB)")),
    ]
    sentence = (
        "Decoding at nano in float32, QK-RoPE unless a variant is named (cpu/decode-nano.json). "
        "The caches of mla and mla_vo are equally large. Linear, retention and decay keep a state "
        "of fixed size."
    )
    return _beside(panels, table, sentence)


def on_log_axis(column: str, title: str) -> alt.Y:
    """Return a column's logarithmic axis, with plain numbers."""
    ticks = [digit * 10.0**power for power in range(-3, 4) for digit in (1, 2, 5)]
    y = alt.Y(f"{column}:Q", title=title).scale(type="log", nice=False, padding=10)
    return y.axis(format="~g", values=ticks, labelOverlap=True)


def _beside(panels: list[alt.LayerChart], table: pd.DataFrame, sentence: str) -> alt.HConcatChart:
    """Return panels of kinds of attention beside their key, with a sentence below."""
    key = key_of(table, "kind")
    return alt.hconcat(*panels, key, spacing=16, title=style.explanation([sentence]))


def _panel(table: pd.DataFrame, x: alt.X, y: alt.Y) -> alt.LayerChart:
    """Draw a line with markers for each kind of attention by size."""
    x = x.scale(type="log", base=2, nice=False, padding=10)
    x = x.axis(format=",", values=sorted(set(table["size"])), labelOverlap=False)
    base = with_looks(table, "kind").encode(x=x, y=y)
    lines = style.row_lines(base, 1.4, "kind")
    return alt.layer(lines, *style.markers(base, size=50), width=225, height=270)


def kills() -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the recorded steps of each run over time, and its kills.

    Returns:
        The columns run, seconds and steps; and these with the phase of the kill.
    """
    points = []
    ends = []
    for number, episode in enumerate(read("torture.json")["episodes"], 1):
        count = len(episode["kills"])
        noun = "kill" if count == 1 else "kills"
        run = f"run {number}: {episode['kind']}, {count} {noun}"
        points += [(run, seconds, steps) for seconds, steps in episode["curve"]]
        for end in episode["kills"]:
            ends.append((run, end["at"], end["step"], end["seen"]))

    columns = ["run", "seconds", "steps"]
    by_phase = pd.DataFrame(ends, columns=[*columns, "phase"])
    by_phase = by_phase.sort_values("phase", key=lambda names: names.map(_PHASES.index))
    return pd.DataFrame(points, columns=columns), by_phase


def torture(tables: tuple[pd.DataFrame, pd.DataFrame]) -> alt.HConcatChart:
    """Draw the recorded steps of killed runs over time, and where they were killed."""
    points, ends = tables
    panels: list[alt.LayerChart] = []
    runs = list(dict.fromkeys(points["run"]))
    for run in runs:
        title = "seconds since the first start" if run == runs[-1] else None
        x = alt.X("seconds:Q", title=title).scale(domain=[-3, 140], nice=False)
        x = x.axis(labels=run == runs[-1], tickCount=7, grid=True)
        y = alt.Y("steps:Q", title="steps").scale(domain=[-8, 125], nice=False)
        y = y.axis(values=[0, 60, 120], grid=True)
        line = alt.Chart(points[points["run"] == run])
        line = line.mark_line(interpolate="step-after", style="quiet", strokeWidth=1.5)
        base = with_looks(ends, "phase").transform_filter(alt.datum["run"] == run)
        layers = [line.encode(x=x, y=y), *style.markers(base.encode(x=x, y=y), size=65)]
        panels.append(
            alt.layer(*layers, title=alt.Title(run, anchor="start"), width=510, height=80)
        )

    title = style.explanation(
        [
            "Steps on record in six runs (torture.json). At a marker, processes were killed in the "
            "phase named; started again, the run falls back to its last checkpoint. All six end "
            "equal to an undisturbed run, bit for bit."
        ]
    )
    key = key_of(ends, "phase").properties(title=alt.Title("killed in", anchor="start"))
    return alt.hconcat(alt.vconcat(*panels, spacing=8), key, title=title)


def figures() -> dict[str, bytes]:
    """Return every figure, as SVG files by their paths below results/bench."""
    return {
        "cpu/throughput.svg": made(throughput, speeds()),
        "cpu/length-nano.svg": made(length, lengths()),
        "cpu/decode-nano.svg": made(decode, contexts()),
        "torture.svg": made(torture, kills()),
    }


def made(draw: Callable[[Any], alt.TopLevelMixin], data: Any) -> bytes:
    """Return the SVG file of a figure that its data always allow."""
    svg = drawn(draw, data)
    assert svg is not None
    return svg


def main(folder: Path = BENCH) -> None:
    """Write every figure."""
    for name, svg in figures().items():
        write_atomically(folder / name, svg)
        print(folder / name)


if __name__ == "__main__":
    main()
