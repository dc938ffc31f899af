"""Each variant's difference from QK-RoPE in every setting with both, in results/settings."""

import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote

import altair as alt
import pandas as pd

from rope_exp.comparable import SEEDS, spelled
from rope_exp.identity import choices, chosen
from rope_exp.published import REFERENCE, TABLE
from rope_exp.report import WORDS, Report, paragraphs
from rope_exp.runs import Run
from rope_exp.stats import ALPHA, MARGIN
from rope_exp.table import markdown_table, millions

# Best first, according to the only published table of all nine variants.
COLUMNS = [label for label in TABLE.losses if label != REFERENCE]
# Keys that a setting's name mentions if its value is unlike that of most settings.
_MENTIONED = {
    "optim.lr": "lr {}",
    "train.seq_len": "length {}",
    "model.hidden_size": "width {}",
    "model.num_hidden_layers": "layers {}",
    "model.num_attention_heads": "heads {}",
    "model.qk_norm": "QK norm",
    "model.token_shift": "token shift",
    "data.document_mask": "document mask",
    "data.random_start": "random start",
}


def files(
    asked: Collection[str], records: Mapping[str, Sequence[Run]], tables: Mapping[str, Report]
) -> dict[str, bytes]:
    """Return settings.md, settings.csv and the figure, if all campaigns are asked for.

    Tables without the reference, tables with rows that are not variants, and tables that only run
    the cells of a larger one again are left out. Empty with fewer than two settings.
    """
    settings: dict[str, Report] = {}
    seen: list[set[str]] = []
    for place, report in sorted(tables.items(), key=lambda item: (-len(item[1].runs), item[0])):
        hashes = {run.config.config_sha256 for run in report.runs}
        is_setting = report.of_variants and report.reference.label == REFERENCE
        deltas = {report.lines[label]["delta"] for label in COLUMNS if label in report.rows}
        if is_setting and deltas - {None} and not any(hashes <= larger for larger in seen):
            settings[place] = report
            seen.append(hashes)
    if len(asked) < len(records) or len(settings) < 2:
        return {}

    titles = _titles(settings)
    names = {label: row.name for each in settings.values() for label, row in each.rows.items()}
    every = pd.DataFrame([line for item in settings.items() for line in _lines(*item)])
    parts = [
        f"**Each variant's loss minus that of {names[REFERENCE]}, in every setting with "
        "both:** mean within a seed, with the number of seeds in parentheses. A star marks a "
        "difference that the test of the setting's table distinguishes from 0 (adjusted by Holm "
        "over the differences there; at least two seeds). Settings with more runs come first. A "
        "setting that only repeats cells of another is left out. A difference from one seed says "
        "little. Intervals, and variants beyond the nine, are in settings.csv."
    ]
    first = every.groupby("setting", sort=False).first()
    # A space is no part of a link.
    links = [f"[{titles[place]}](../{quote(place, safe='/=,+')}/table.md)" for place in first.index]
    lines = pd.DataFrame({"setting": links, "in": first["unit"]})
    lines[["parameters", "tokens"]] = first[["parameters", "tokens"]].map(millions)
    lines["warmup"] = first["warmup_steps"].map("{:,}".format)
    cells = every.pivot(index="setting", columns="pe", values="cell")
    for label in COLUMNS:
        if label in names:
            lines[names[label].removesuffix("-RoPE")] = cells[label]
    of_text = {
        place: report
        for place, report in settings.items()
        if report.runs[0].config.data.task is None
    }
    is_text = lines.index.isin(of_text)
    for title, kept in (
        ("Text, in nats per token:", lines[is_text].drop(columns="in")),
        ("Generated data:", lines[~is_text]),
    ):
        parts += [title, markdown_table(kept)] if len(kept) else []

    table = every.drop(columns="cell").to_csv(index=False, float_format="%.6f")
    made = {"settings/settings.csv": table.encode()}
    chart = relations(of_text) if "style" in choices("figures") else None
    if chart is not None:
        made["settings/figures/relations.svg"] = chosen("figures", "style", "figures").svg_of(
            chart.to_dict()
        )
        parts.append("![relations](figures/relations.svg)")
    return {"settings/settings.md": paragraphs(*parts).encode(), **made}


def _titles(settings: Mapping[str, Report]) -> dict[str, str]:
    """Return a title for each setting: its campaign, and its differences from others there."""
    titles = {}
    for place, report in settings.items():
        run = report.runs[0]
        configs = [
            each.runs[0].config for each in settings.values() if each.groups == report.groups
        ]
        words = [run.group]
        for key in [key for key in run.factors if key not in SEEDS]:
            if len({spelled(config, key) for config in configs}) > 1:
                words.append(f"{key.rpartition('.')[2]}={spelled(run.config, key)}")
        if {config.attn.label for config in configs} != {"softmax"}:
            words.append(run.config.attn.label)
        titles[place] = ", ".join(words)
    return titles


def _lines(place: str, report: Report) -> Iterator[dict[str, Any]]:
    """Yield a line for each variant that shares a seed with QK-RoPE: the CSV's, and its `cell`."""
    decided: Any = report.decided.to_dict("index")
    for label, line in report.lines.items():
        if line["delta"] is None or label == report.reference.label:
            continue
        judged = decided.get(label, {})
        star = "*" if judged and judged["p_adjusted"] < ALPHA else ""
        num_seeds = judged.get("num_seeds", 1)
        config = report.runs[0].config
        yield {
            "setting": place,
            "pe": label,
            "unit": report.unit,
            "parameters": report.runs[0].result["params"],
            "tokens": config.train.num_tokens,
            "warmup_steps": config.num_warmup_steps,
            "num_seeds": num_seeds,
            **{key: line[key] for key in ("delta", "delta_ci_low", "delta_ci_high", "p_holm")},
            "verdict": WORDS[judged["verdict"]] if judged else "untested",
            "cell": f"{line['delta']:+.3f}{star} ({num_seeds})",
        }


# -- the figure ------------------------------------------------------------------------------------


def relations(settings: Mapping[str, Report]) -> alt.ConcatChart | None:
    """Draw the published relations in each setting; None if fewer than two settings have one.

    Only settings in which softmax attention predicts the next token of text are included, without
    those in float32: with masked tokens, losses differ by which variant has begun to learn.
    """
    names = _plain_names(
        {
            place: report
            for place, report in settings.items()
            if report.source is TABLE and report.runs[0].config.train.precision != "fp32"
        }
    )
    points = pd.DataFrame([point for item in names.items() for point in _points(*item)])
    if points.empty or points["setting"].nunique() < 2:
        return None

    panels = []
    for place, (_, of_relation) in enumerate(points.groupby("place")):
        axis = alt.Axis(domain=False, ticks=False, grid=True, labelLimit=300, labelFontSize=10)
        # Only the first panel of a line shows the names.
        axis.labels = place % 4 == 0
        y = alt.Y("setting:N", title=None, scale=alt.Scale(domain=list(names)), axis=axis)
        panels.append(_panel(of_relation, y))
    explanation = (
        "The second variant's loss minus the first's, in nats per token: mean within a seed. "
        "Published A > B means that A is better, so the difference is positive; A ≈ B means that "
        "both are equal. Bar: 95 % interval of the paired t test. Hollow: one seed, which says "
        "little. Arrow: outside the axis; a bar that reaches an edge extends further. Grey band: "
        f"margin of {MARGIN:g} nats. Softmax attention, next token on text. A name ends with the "
        "values that differ from most settings."
    )
    return alt.concat(
        *panels,
        columns=4,
        spacing=12,
        title=chosen("figures", "style", "figures").explanation([explanation]),
    )


def _panel(points: pd.DataFrame, y: alt.Y) -> alt.LayerChart:
    """Draw one relation: a line for each setting that has it."""
    # A single seed may lie far off, so tested differences set the axis; arrows mark the others.
    style = chosen("figures", "style", "figures")
    tested = points[points["is_tested"]]
    domain = style.limits([*tested["delta"], -MARGIN, MARGIN], [*tested["low"], *tested["high"]])
    shapes = ("triangle-left", "circle", "triangle-right")
    shape = pd.cut(points["delta"], [-math.inf, *domain, math.inf], labels=shapes).astype(str)

    x = alt.X("delta:Q", title=None).scale(domain=domain, nice=False, clamp=True)
    x = x.axis(labelExpr=style.SIGNED, tickCount=3, grid=True, labelFontSize=10)
    base = alt.Chart(points.assign(shape=shape)).encode(y=y)
    bars = base.transform_filter("datum.is_tested").mark_rule(color=style.INK, strokeWidth=2.5)
    dots = base.mark_point(color=style.INK, size=28, opacity=1, strokeWidth=1)
    fill = alt.condition("datum.is_tested", alt.value(style.INK), alt.value("white"))
    title = alt.Title(points["relation"].iloc[0], anchor="middle", color=style.INK, fontSize=12)
    return alt.layer(
        *style.zero_and_margin(),
        bars.encode(x="low:Q", x2="high"),
        dots.encode(x=x, fill=fill, shape=alt.Shape("shape:N", scale=None)),
        title=title,
        width=98,
        height=alt.Step(13),
    )


def _plain_names(settings: Mapping[str, Report]) -> dict[str, Report]:
    """Return the settings by plain names, ordered by tokens; the usual ones first."""
    titles = _titles(settings)
    values: dict[str, dict[str, str]] = {key: {} for key in _MENTIONED}
    for key, of_places in values.items():
        for place, report in settings.items():
            spellings = {spelled(run.config, key) for run in report.runs}
            of_places[place] = spellings.pop() if len(spellings) == 1 else "tuned"
    ordered = []
    for place, report in settings.items():
        config = report.runs[0].config
        words = []
        for key, of_places in values.items():
            [(usual, _)] = Counter(of_places.values()).most_common(1)
            if of_places[place] != usual:
                words.append(_MENTIONED[key].format(of_places[place]))
        name = ", ".join([*report.told("setting"), *words])
        corpus = name.partition(",")[0]
        order = (config.train.num_tokens, bool(words), corpus, config.num_warmup_steps)
        ordered.append((order, name, -len(report.runs), place))

    # If settings share a name, those with fewer runs also name their campaign.
    named: dict[str, Report] = {}
    for _, name, _, place in sorted(ordered):
        unique = f"{name} ({titles[place]})" if name in named else name
        named[unique] = settings[place]
    return named


def _points(name: str, report: Report) -> Iterator[dict[str, Any]]:
    """Yield the difference of each published relation, with its paired interval if it has one."""
    judged = report.pairs["published"].set_index(["a", "b"])
    for place, (a, sign, b) in enumerate(TABLE.relations):
        losses = report.losses.reindex(columns=[a, b])
        delta = float((losses[b] - losses[a]).mean())
        if math.isnan(delta):
            continue
        names = [report.rows[label].name.removesuffix("-RoPE") for label in (a, b)]
        is_tested = (a, b) in judged.index
        own = judged.loc[(a, b)] if is_tested else {}
        yield {
            "setting": name,
            "place": place,
            "relation": f" {sign} ".join(names),
            "delta": delta,
            "low": own.get("delta_ci_low_alone"),
            "high": own.get("delta_ci_high_alone"),
            "is_tested": is_tested,
        }
